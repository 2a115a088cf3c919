"""The one way to build the posterior's linear system: form, preconditioner, batch size.

The E-step and the posterior both call `build_system`. Where the same Phi is solved with again and again, the
steps that each form took recently decide between the forms; the first time, what is known about alpha does.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from cofem._arrays import Array, average, inner, namespace, precision_of, reciprocal, total
from cofem.linalg.preconditioners import (
    DiagonalPreconditioner,
    PosteriorPreconditioner,
    deflated,
    from_bands,
    from_blocks,
    from_decay,
    large_atoms,
    large_columns,
    waves_of,
)
from cofem.linalg.system import Form, PosteriorSystem
from cofem.operators import Operator
from cofem.operators.dictionary import Dictionary

PreconditionerName = Literal["auto", "none", "spectral", "jacobi"]
FormName = Literal["auto", "primal", "dual"]

#: Numbers in one array of a batch up to which more right-hand sides at once are a gain, for operators that
#: only compute, and for those that also read a matrix from memory.
BATCH = 2**20
BATCH_WITH_MATRIX = 2**24

#: CG steps that a form is taken to need before it has been tried.
UNTRIED_STEPS = 30
#: Error of a mean by rounding, in units of the noise, that is not worth another form.
ROUNDING = 0.02
#: How fast the memory of a form's cost fades, so that it is tried again when the other gets expensive.
FADE = 0.9


def build_system(
    phi: Dictionary,
    alpha: Array,
    noise_var: float,
    *,
    form: FormName = "auto",
    preconditioner: PreconditionerName = "auto",
    steps: dict[Form, float] | None = None,
) -> PosteriorSystem:
    """Return the posterior's system in the form, and with the preconditioner, that should take fewest steps.

    Parameters
    ----------
    phi : Dictionary
        Phi, shape (N, D).
    alpha : array of shape (D,)
        Prior precisions.
    noise_var : float
        Noise variance.
    form : {"auto", "primal", "dual"}
        Which system to iterate on; see `choose_form`.
    preconditioner : {"auto", "none", "spectral", "jacobi"}
        Of the primal form: ``beta c + alpha`` with c the squared norm of Phi (`spectral`) or of each column
        (`jacobi`). `auto` takes `spectral` for orthonormal rows, a Fourier transform for what is like a
        convolution, else `jacobi`, and for the dual form the columns that stand out, where Phi stores its
        columns in double precision.
    steps : dict, optional
        CG steps that each form took recently, see `remember_steps`; None if this system is solved once.

    Examples
    --------
    >>> import numpy as np
    >>> from cofem.operators import DCT, Mask
    >>> phi = Dictionary(Mask([0, 2, 5], 8) @ DCT(8).T, like=np.zeros(1))
    >>> system = build_system(phi, np.ones(8), 0.1)
    >>> system.form, type(system.preconditioner).__name__
    ('primal', 'DiagonalPreconditioner')
    """
    at_once = right_hand_sides_at_once(phi)
    large: PosteriorPreconditioner | None = None
    with_large = preconditioner == "auto" and form != "primal"
    if with_large and (atoms := large_atoms(phi, reciprocal(alpha), noise_var)) is not None:
        return PosteriorSystem(phi, alpha, noise_var, "dual", atoms, at_once)
    if form == "auto":
        if steps is None and may_be_dual(phi):
            # With the columns that stand out in a preconditioner, the dual form takes few steps.
            large, with_large = (
                (large_columns(phi, reciprocal(alpha), noise_var) if with_large else None),
                False,
            )
            steps = expected_steps(phi, alpha, noise_var) if large is None else {}
        form = choose_form(phi, alpha, noise_var, steps)
    if form == "dual":
        if with_large:
            large = large_columns(phi, reciprocal(alpha), noise_var)
        return PosteriorSystem(phi, alpha, noise_var, form, large, at_once)
    if preconditioner == "auto" and (decay := from_decay(phi, alpha, noise_var)) is not None:
        return PosteriorSystem(phi, alpha, noise_var, form, decay, at_once)
    if preconditioner == "auto" and (bands := from_bands(phi, alpha, noise_var)) is not None:
        return PosteriorSystem(phi, alpha, noise_var, form, bands, at_once)
    if preconditioner == "auto" and (waves := waves_of(phi, alpha, noise_var)) is not None:
        best = deflated(waves, phi, alpha, noise_var)
        return PosteriorSystem(phi, alpha, noise_var, form, best, at_once)
    if preconditioner == "auto" and (several := phi.block_circulant_gram()) is not None:
        best = from_blocks(phi, alpha, noise_var, several)
        return PosteriorSystem(phi, alpha, noise_var, form, best, at_once)
    if preconditioner == "auto":
        preconditioner = "jacobi" if phi.facts.row_gram is None else "spectral"
    diagonal = None
    if preconditioner != "none":
        energy = phi.column_energy if preconditioner == "jacobi" else phi.gain
        diagonal = DiagonalPreconditioner(alpha, noise_var, energy)
    return PosteriorSystem(phi, alpha, noise_var, form, diagonal, at_once)


def right_hand_sides_at_once(operator: Operator) -> int:
    """Systems to solve together: few where one fills the processor and more would fill the memory."""
    batch = BATCH if operator.precision is None else BATCH_WITH_MATRIX
    return max(1, batch // operator.shape[1])


def may_be_dual(operator: Operator) -> bool:
    """Tell whether the dual form is worth a thought, whatever alpha is."""
    return operator.shape[0] < operator.shape[1]


def choose_form(
    phi: Dictionary, alpha: Array, noise_var: float, steps: dict[Form, float] | None = None
) -> Form:
    """Pick the form whose conjugate gradients take fewer steps and stay accurate.

    1. N >= D: primal.
    2. Rows that are orthonormal up to scale, or a dictionary that is like a convolution: primal, as long as
       the working precision can tell the prior from the data term.
    3. Otherwise the dual form is best while most of alpha is far below ``beta ||phi_j||^2``, and the primal
       one later; the steps that they took recently decide, and what rounding does to either.

    Parameters
    ----------
    phi : Dictionary
        Phi.
    alpha : array of shape (D,)
        Prior precisions.
    noise_var : float
        Noise variance.
    steps : dict, optional
        CG steps that each form took recently; see `remember_steps`.
    """
    row_gram = phi.facts.row_gram
    if not may_be_dual(phi):
        return "primal"
    steps = steps or {}
    # What is like a convolution has a preconditioner of the primal form only.
    like_convolution = phi.circulant_gram() is not None or phi.block_circulant_gram() is not None
    untried = np.inf if like_convolution else 0
    quicker = row_gram is None and steps.get("primal", UNTRIED_STEPS) >= steps.get("dual", untried)
    if quicker and _rounding_of_dual(phi, alpha, noise_var) < ROUNDING:
        return "dual"
    # Rounding errors of the primal form collect in directions the data do not see, where the prior rules.
    gain = phi.norm**2 if row_gram is None else row_gram
    if not gain:  # there is nothing but the prior
        return "primal"
    resolution = 0.02 * noise_var / (gain * float(np.finfo(precision_of(phi.like)).eps))
    g = reciprocal(alpha)
    # The median is at most twice the mean, which costs less.
    mean = float(np.mean(g)) if isinstance(g, np.ndarray) else average(g)
    return "primal" if 2 * mean < resolution or _median_below(g, resolution) else "dual"


def _rounding_of_dual(phi: Dictionary, alpha: Array, noise_var: float) -> float:
    """Say what rounding does to ``x = g Phi^H w``, in units of the noise, in which CG is stopped as well.

    Late in a fit w is the residual over the noise variance, and for a coefficient that was found most of
    ``phi_j^H w`` cancels: in single precision a dense problem with N = 400 (70 dB) ended with an error of
    0.48 where CG saw 0.01. No error measure of CG sees it.
    """
    eps = float(np.finfo(precision_of(phi.like)).eps)
    if eps < 1e-10:
        return 0.0
    ratio = phi.column_energy / alpha
    return eps * (inner(ratio, ratio) / phi.shape[0]) ** 0.5 / noise_var


def expected_steps(phi: Dictionary, alpha: Array, noise_var: float) -> dict[Form, float]:
    """Say which form takes more steps: dual, once the data rule fewer coefficients than there are data.

    It then took 1.3 to 13 times as many on blurred, dense and blurred wavelet dictionaries with D = 1024 to
    16384; on blurs with D = 256 and 512, where a system costs next to nothing, 0.8 to 1 times as many.
    """
    if phi.facts.row_gram is not None:  # then they make no difference
        return {}
    ratio = phi.column_energy / (noise_var * alpha)
    return {"dual": np.inf} if total(ratio / (1 + ratio)) < phi.shape[0] else {}


def _median_below(x: Array, limit: float) -> bool:
    if isinstance(x, np.ndarray):
        return float(np.median(x)) < limit
    xp = namespace(x)  # the standard has no median, but one may count
    return 2 * int(xp.count_nonzero(x < limit)) > x.shape[0]


def remember_steps(steps: dict[Form, float], form: Form, latest: float) -> dict[Form, float]:
    """Note what `form` cost just now; what the other one cost is slowly forgotten."""
    return {name: FADE * cost for name, cost in steps.items()} | {form: float(latest)}
