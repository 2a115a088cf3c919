r"""The mean by message passing: sweeps that go on where the last ones ended, while alpha changes.

Conjugate gradients start again with every alpha. Sweeps keep what they know: a few of them after each update
of alpha are enough, at one application each. With the precision tau of what the data say about a coefficient
(the one that gives the self-consistent variances ``1 / (alpha + tau)``) there are two kinds.

Rows that are orthonormal up to scale, ``Phi Phi^H = c I`` (`orthonormal_sweep`, the linear case of vector
approximate message passing, Rangan, Schniter and Fletcher 2019): prior and data take turns,

.. math:: x = \frac{\tau r}{\alpha + \tau}, \quad u = \frac{(\tau + \omega) x - \tau r}{\omega}, \quad
          r \leftarrow u + \frac{(\tau + \omega) \beta}{\tau (\omega + \beta c)} \Phi^H (y - \Phi u).

Columns like those of a Gaussian matrix (`gaussian_sweep`, approximate message passing): with the variance t
that the posterior adds to a datum,

.. math:: s \leftarrow \frac{y - \Phi x + t s}{t + \sigma^2}, \quad
          x \leftarrow \frac{q_j}{1 + \alpha_j \nu_j}, \quad q_j = x_j + \nu_j \phi_j^H s, \quad
          \nu_j = \frac{t + \sigma^2}{\|\phi_j\|^2}.

Whatever tau, omega and t are, the fixed point of either is the exact mean ``Sigma beta Phi^H y``: they set
the speed alone. On dictionaries that are neither, sweeps grow or crawl; `settle` sees the former, and a solve
by conjugate gradients at the end of a fit the latter (`CoFEM.confirm`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from cofem._arrays import Array, inner, namespace, norm, number_like, reciprocal
from cofem.operators.dictionary import Dictionary

#: Sweeps end once what is left to go is at most this share of what they moved since the update of alpha. With
#: one sweep for each update fits end in bad optima: alpha runs ahead of the mean.
SHARE = 0.15
#: The same for probes, which judge others.
SHARE_OF_PROBES = 0.05
#: Most sweeps for one alpha: what takes more is left to conjugate gradients.
MOST_SWEEPS = 30
#: Rate from which on moves that have nearly one direction (this cosine) are summed up, unless the rate is as
#: near to one as this.
SLOW, ALIKE, NEARLY_ONE = 0.6, 0.95, 0.02


class Exchange(NamedTuple):
    """Precisions of the messages about a coefficient whose column has the mean energy.

    Attributes
    ----------
    tau : float
        What the data say: variances are ``1 / (alpha + tau)``.
    omega : float
        What the prior says, so that ``1 / (tau + omega)`` is the mean variance.
    """

    tau: float
    omega: float


#: What a sweep hands to the next: arrays, of which an affine function is the fixed point.
Messages = tuple[Array, ...]
Sweep = Callable[[Messages | None], tuple[Array, Messages]]


class Swept(NamedTuple):
    """What sweeps found.

    Attributes
    ----------
    x : array of shape (B, D)
        The solutions.
    messages : tuple of arrays
        Where the next sweeps go on.
    sweeps : int
        How many it took.
    """

    x: Array
    messages: Messages
    sweeps: int


class Target(NamedTuple):
    """What is to be solved for: ``Sigma (beta Phi^H y + b)``.

    Attributes
    ----------
    phi : Dictionary
        Phi, shape (N, D).
    alpha : array of shape (D,)
        Prior precisions.
    noise_var : float
        Noise variance ``1 / beta``.
    y : array of shape (B, N) or None
        Data, a row for each task; None for zeros.
    b : array of shape (B, D) or None
        Probes; None for zeros.
    """

    phi: Dictionary
    alpha: Array
    noise_var: float
    y: Array | None = None
    b: Array | None = None


def orthonormal_sweep(target: Target, exchange: Exchange) -> Sweep:
    """Return a sweep over a dictionary whose rows are orthonormal up to scale.

    Parameters
    ----------
    target : Target
        The systems; its dictionary has ``facts.row_gram``.
    exchange : Exchange
        Precisions of the messages.

    Returns
    -------
    callable
        ``sweep(messages) -> x, messages``; the messages are one array of shape (B, D).

    Examples
    --------
    >>> import numpy as np
    >>> from cofem.operators import DCT, Mask
    >>> phi = Dictionary(Mask([0, 2, 5], 8) @ DCT(8).T, like=np.zeros(1))
    >>> y, b, alpha = np.array([[1.0, -1.0, 2.0]]), np.ones((1, 8)), np.geomspace(1, 10, 8)
    >>> right = phi.adjoint(y[0]) / 0.1 + b[0]
    >>> exact = np.linalg.solve(phi.gram(np.eye(8)) / 0.1 + np.diag(alpha), right)
    >>> sweep, messages = orthonormal_sweep(Target(phi, alpha, 0.1, y, b), Exchange(2.0, 3.0)), None
    >>> for _ in range(60):
    ...     x, messages = sweep(messages)
    >>> np.allclose(x[0], exact)
    True
    """
    phi, alpha, noise_var, y, b = target
    tau, omega = exchange
    c = phi.facts.row_gram
    assert c is not None
    shrink = reciprocal(alpha + tau)
    own = None if b is None else shrink * b  # what the prior says of a probe, whatever the data do
    shrink *= tau
    reflect = (omega - alpha) * (shrink / omega)
    gain = (tau + omega) / (tau * (omega * noise_var + c))

    def sweep(messages: Messages | None) -> tuple[Array, Messages]:
        towards = None if messages is None else reflect * messages[0]
        if own is not None:
            pushed = ((tau + omega) / omega) * own
            towards = pushed if towards is None else towards + pushed
        misfit = _misfit(phi, y, towards)
        new = phi.adjoint(misfit)
        new *= gain
        if towards is not None:
            new += towards
        x = shrink * new
        if own is not None:
            x += own
        return x, (new,)

    return sweep


def gaussian_sweep(target: Target, exchange: Exchange) -> Sweep:
    """Return a sweep over a dictionary whose columns are like those of a Gaussian matrix.

    Parameters
    ----------
    target, exchange
        As in `orthonormal_sweep`.

    Returns
    -------
    callable
        ``sweep(messages) -> x, messages``; the messages are x, shape (B, D), and s, shape (B, N), which for
        data is ``C^-1 y`` at the fixed point.

    Examples
    --------
    >>> import numpy as np
    >>> from cofem.operators import Dense
    >>> matrix = np.random.default_rng(0).standard_normal((30, 60))
    >>> phi, y, b = Dictionary(Dense(matrix), like=np.zeros(1)), np.ones((1, 30)), np.ones((1, 60))
    >>> exact = np.linalg.solve(matrix.T @ matrix / 0.1 + 50 * np.eye(60), matrix.T @ y[0] / 0.1 + b[0])
    >>> target = Target(phi, np.full(60, 50.0), 0.1, y, b)
    >>> sweep, messages = gaussian_sweep(target, Exchange(25.0, 1.0)), None
    >>> for _ in range(200):
    ...     x, messages = sweep(messages)
    >>> np.allclose(x[0], exact)
    True
    """
    phi, alpha, noise_var, y, b = target
    energy = phi.column_energy
    mean_energy = phi.energy / phi.shape[1]
    spread = max(mean_energy / exchange.tau - noise_var, 0.0)
    total = spread + noise_var
    least = number_like(energy, 1e-30 * mean_energy)  # columns of zeros: any number would do
    noise = total * reciprocal(namespace(energy).maximum(energy, least))
    shrink = reciprocal(1 + alpha * noise)
    own = None if b is None else noise * b

    def sweep(messages: Messages | None) -> tuple[Array, Messages]:
        if messages is None:
            x = None if own is None else shrink * own
            new = _misfit(phi, y, x) / total
        else:
            x, last = messages
            new = _misfit(phi, y, x)
            new = new + spread * last
            new /= total
        step = phi.adjoint(new)
        step *= noise
        for part in (x, own):
            if part is not None:
                step += part
        step *= shrink
        return step, (step, new)

    return sweep


def _misfit(phi: Dictionary, y: Array | None, x: Array | None) -> Array:
    """Return ``y - Phi x``; None stands for zeros."""
    if x is None:
        return y
    fitted = phi.forward(x)
    return -fitted if y is None else y - fitted


def settle(
    sweep: Sweep, start: Array | None, messages: Messages | None, share: float = SHARE
) -> Swept | None:
    """Sweep until the solutions have settled against what they moved since the start; None if they do not.

    Where one direction is all that is left, which moves by the same factor in every sweep, its sum to
    infinity is taken at once; that is right for a factor above one, too. (Early in a fit there may be one:
    alpha depends on the data, and so is in a special relation to the dictionary.)

    Parameters
    ----------
    sweep : callable
        `orthonormal_sweep` or `gaussian_sweep`.
    start : array of shape (B, D) or None
        The mean before alpha was updated; None for zero.
    messages : tuple of arrays or None
        Where the last sweeps ended; None to begin.
    share : float
        What may be left to go, as a share of the way from the start.
    """
    before, last_step, last_size, path = start, None, np.inf, 0.0
    for count in range(1, MOST_SWEEPS + 1):
        x, new = sweep(messages)
        step = x if before is None else x - before
        size = norm(step)
        if not np.isfinite(size):
            return None
        before, summed, path = x, False, path + size
        if last_step is not None and messages is not None:
            rate = size / last_size if last_size > 0 else 0.0
            # What is left to go, where every move is shorter than the one before by as much as the last.
            left = size * rate / (1 - rate) if rate < 1 else np.inf
            # The way from the start is at most the path, which costs no look at the arrays.
            if left <= share * path and left <= share * norm(x if start is None else x - start):
                return Swept(x, new, count)
            factor = inner(step, last_step) / last_size**2
            if rate > SLOW and abs(factor) > ALIKE * rate and abs(1 - factor) > NEARLY_ONE:
                ahead = factor / (1 - factor)
                new = tuple(part + ahead * (part - old) for part, old in zip(new, messages, strict=True))
                before, summed, path = x + ahead * step, True, path + abs(ahead) * size
        last_step, last_size, messages = None if summed else step, size, new
    return None
