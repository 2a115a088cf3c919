r"""The mean by message passing: sweeps that go on where the last ones ended, while alpha changes.

Conjugate gradients start again with every alpha. Sweeps keep what they know: a few of them after each update
of alpha are enough, at one application each. With the precision tau of what the data say about a coefficient
(the one that gives the self-consistent variances ``1 / (alpha + tau)``) there are two kinds.

Rows that are orthonormal up to scale, ``Phi Phi^H = c I`` (`OrthonormalSweeps`, the linear case of vector
approximate message passing, Rangan, Schniter and Fletcher 2019): prior and data take turns,

.. math:: x = \frac{\tau r}{\alpha + \tau}, \quad u = \frac{(\tau + \omega) x - \tau r}{\omega}, \quad
          r \leftarrow u + \frac{(\tau + \omega) \beta}{\tau (\omega + \beta c)} \Phi^H (y - \Phi u).

Columns like those of a Gaussian matrix (`GaussianSweeps`, approximate message passing): with the variance t
that the posterior adds to a datum,

.. math:: s \leftarrow \frac{y - \Phi x + t s}{t + \sigma^2}, \quad
          x \leftarrow \frac{q_j}{1 + \alpha_j \nu_j}, \quad q_j = x_j + \nu_j \phi_j^H s, \quad
          \nu_j = \frac{t + \sigma^2}{\|\phi_j\|^2}.

Whatever tau, omega and t are, the fixed point of either is the exact mean ``Sigma beta Phi^H y``: they set
the speed alone. On dictionaries that are neither, sweeps grow or crawl; `settle` sees the former, and a solve
by conjugate gradients at the end of a fit the latter (`CoFEM.confirm`).
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple, Protocol

import numpy as np

from cofem._arrays import Array, affine_product, at_least, inner, norm, reciprocal
from cofem._blocks import CACHE_BLOCK, LONG_VECTOR, blocks
from cofem.operators.dictionary import Dictionary

#: Sweeps end once what is left to go is at most this share of what they moved since the update of alpha. With
#: one sweep for each update fits end in bad optima: alpha runs ahead of the mean. The first few updates
#: decide which optimum is found; after so many of them, more may be left if columns are like Gaussian ones.
SHARE, EARLY, LATE_SHARE = 0.15, 4, 0.2
#: The same for probes, which judge others.
SHARE_OF_PROBES = 0.05
#: By how many sweeps fewer an update of alpha may take than the one before.
FEWER = 1
#: Most sweeps for one alpha: what takes more is left to conjugate gradients.
MOST_SWEEPS = 30
#: Rate from which on moves that have nearly one direction (this cosine) are summed up, unless the rate is as
#: near to one as this.
SLOW, ALIKE, NEARLY_ONE = 0.6, 0.95, 0.02
#: All places of a vector.
ALL = slice(None)


class Exchange(NamedTuple):
    """Precisions of the messages about a coefficient whose column has the mean energy.

    Attributes
    ----------
    tau : float
        What the data say: variances are ``1 / (alpha + tau)``.
    omega : float
        What the prior says, so that ``1 / (tau + omega)`` is the mean variance.
    variance : array of shape (D,) or None
        ``1 / (alpha + tau)``, where it is known.
    """

    tau: float
    omega: float
    variance: Array | None = None


#: What a sweep hands to the next: arrays, of which an affine function is applied in every sweep.
Messages = tuple[Array, ...]


class Swept(NamedTuple):
    """What sweeps found.

    Attributes
    ----------
    x : array of shape (B, D)
        The solutions.
    dual : array of shape (B, N) or None
        ``C^-1 y`` for data, where the sweeps know it.
    sweeps : int
        How many it took.
    summed_up : bool
        Whether moves had to be summed up: where the next sweeps end is then hard to say.
    """

    x: Array
    dual: Array | None
    sweeps: int
    summed_up: bool = False


class Before(NamedTuple):
    """Where the last sweeps ended.

    Attributes
    ----------
    mean : array of shape (L, D)
        The mean then.
    alpha : array of shape (D,)
        The precisions that it belongs to.
    tau : float or None
        What the data said; None where the mean was not found by sweeps.
    dual : array of shape (L, N) or None
        What `Swept` had.
    sweeps : int
        How many it took; 0 where that is not known.
    """

    mean: Array
    alpha: Array
    tau: float | None = None
    dual: Array | None = None
    sweeps: int = 0


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
    data : array of shape (B, D) or None
        ``Phi^H y``, where it is known.
    """

    phi: Dictionary
    alpha: Array
    noise_var: float
    y: Array | None = None
    b: Array | None = None
    data: Array | None = None


class Sweeps(Protocol):
    """A kind of sweeps."""

    #: What moves are multiplied by.
    scale: float
    #: What may be left to go after the first updates of alpha, as a share of the way since the last.
    late_share: float

    def resumed(self, before: Before) -> Messages | None:
        """Return the messages that the last sweeps ended with; None to begin."""

    def advance(self, messages: Messages | None) -> Messages:
        """Sweep once; None to begin."""

    def solution(self, messages: Messages, places: slice = ALL) -> Array:
        """Return the solutions that messages stand for, shape (B, D), or some places of them."""

    def move(self, new: Messages, old: Messages) -> Array:
        """Return by how much the solutions moved from one sweep to the next, over `scale`, shape (B, D)."""

    def dual(self, messages: Messages) -> Array | None:
        """Return ``C^-1 y``, where it is known."""


class OrthonormalSweeps:
    """Sweeps over a dictionary whose rows are orthonormal up to scale.

    Parameters
    ----------
    target : Target
        The systems; its dictionary has ``facts.row_gram``.
    exchange : Exchange
        Precisions of the messages, which are one array of shape (B, D): ``tau r`` of the equations above,
        plus the probes, or over `scale` where there are none.

    Examples
    --------
    >>> import numpy as np
    >>> from cofem.operators import DCT, Mask
    >>> phi = Dictionary(Mask([0, 2, 5], 8) @ DCT(8).T, like=np.zeros(1))
    >>> y, b, alpha = np.array([[1.0, -1.0, 2.0]]), np.ones((1, 8)), np.geomspace(1, 10, 8)
    >>> right = phi.adjoint(y[0]) / 0.1 + b[0]
    >>> exact = np.linalg.solve(phi.gram(np.eye(8)) / 0.1 + np.diag(alpha), right)
    >>> sweeps, messages = OrthonormalSweeps(Target(phi, alpha, 0.1, y, b), Exchange(2.0, 3.0)), None
    >>> for _ in range(60):
    ...     messages = sweeps.advance(messages)
    >>> np.allclose(sweeps.solution(messages)[0], exact)
    True
    """

    #: With 0.3 after 8, 12, 16 or 20 updates, 70, 72, 75 and 75 of 100 fits near the limit found the signal,
    #: and 76 with this (DCT, D = 2048, d = 0.103 D).
    late_share = SHARE

    def __init__(self, target: Target, exchange: Exchange) -> None:
        self.target, (tau, omega, weight) = target, exchange
        self.tau = tau
        c, b, data = target.phi.facts.row_gram, target.b, target.data
        assert c is not None
        self.weight = reciprocal(target.alpha + tau) if weight is None else weight
        # With m = tau r + b and U = tau u: U = pull m + back b, pull = tau (1 + back) weight - back, and the
        # next m is U + gain Phi^H (tau y - Phi U) + b.
        self.back = tau / omega
        self.gain = (1 + omega / tau) / (omega * target.noise_var + c)
        if data is None and target.y is not None:
            data = target.phi.adjoint(target.y)
        # Pull takes memory that long vectors are short of.
        is_long = target.alpha.shape[0] >= LONG_VECTOR
        self.pull = None if is_long else tau * (1 + self.back) * self.weight
        if self.pull is not None:
            self.pull -= self.back
        # For the same reason data are not copied: all is in units of what they would be multiplied by.
        unit = self.gain * tau
        self.scale = unit if b is None else 1.0
        self.shift = data if b is None else b if data is None else unit * data + b

    def resumed(self, before: Before) -> Messages | None:
        """Return ``r = mean (alpha + tau) / tau`` of then, times tau: there is no need to keep it."""
        if before.tau is None or self.target.b is not None:
            return None
        unit = self.tau / self.scale
        return (affine_product(unit / before.tau, before.alpha, unit, before.mean),)

    def advance(self, messages: Messages | None) -> Messages:
        """Sweep once; None to begin."""
        b, phi, back = self.target.b, self.target.phi, self.back
        if messages is None and b is None:
            return (self.shift,)
        m = b if messages is None else messages[0]
        if self.pull is None:
            u = affine_product(self.tau * (1 + back), self.weight, -back, m)
        else:
            u = self.pull * m
        if b is not None:
            u += back * b
        return (phi.gradient_step(u, self.gain, self.shift, overwrite_x=True),)

    def solution(self, messages: Messages, places: slice = ALL) -> Array:
        """Return ``m / (alpha + tau)``."""
        x = self.weight[places] * messages[0][:, places]
        x *= self.scale
        return x

    def move(self, new: Messages, old: Messages) -> Array:
        """Return the move of the messages, over ``alpha + tau``."""
        move = new[0] - old[0]
        move *= self.weight
        return move

    def dual(self, messages: Messages) -> None:
        """Return None: it is not known."""
        return


class GaussianSweeps:
    """Sweeps over a dictionary whose columns are like those of a Gaussian matrix.

    Parameters
    ----------
    target, exchange
        As in `OrthonormalSweeps`. The messages are the solutions, shape (B, D), and s, shape (B, N), which
        for data is ``C^-1 y`` at the fixed point.

    Examples
    --------
    >>> import numpy as np
    >>> from cofem.operators import Dense
    >>> matrix = np.random.default_rng(0).standard_normal((30, 60))
    >>> phi, y, b = Dictionary(Dense(matrix), like=np.zeros(1)), np.ones((1, 30)), np.ones((1, 60))
    >>> exact = np.linalg.solve(matrix.T @ matrix / 0.1 + 50 * np.eye(60), matrix.T @ y[0] / 0.1 + b[0])
    >>> target = Target(phi, np.full(60, 50.0), 0.1, y, b)
    >>> sweeps, messages = GaussianSweeps(target, Exchange(25.0, 1.0)), None
    >>> for _ in range(200):
    ...     messages = sweeps.advance(messages)
    >>> np.allclose(sweeps.solution(messages)[0], exact)
    True
    """

    scale = 1.0
    #: Of 160 fits near the limit 131 found the signal, and 132 with `SHARE`; with 0.3 in 129.
    late_share = LATE_SHARE

    def __init__(self, target: Target, exchange: Exchange) -> None:
        self.target = target
        phi = target.phi
        energy, mean_energy = phi.column_energy, phi.energy / phi.shape[1]
        self.spread = max(mean_energy / exchange.tau - target.noise_var, 0.0)
        self.total = self.spread + target.noise_var
        # Columns of zeros: any number would do.
        self.noise = self.total * reciprocal(at_least(energy, 1e-30 * mean_energy))
        self.shrink = reciprocal(1 + target.alpha * self.noise)

    def resumed(self, before: Before) -> Messages | None:
        """Return mean and dual."""
        return None if before.tau is None or before.dual is None else (before.mean, before.dual)

    def advance(self, messages: Messages | None) -> Messages:
        """Sweep once; None to begin."""
        phi, y, b = self.target.phi, self.target.y, self.target.b
        own = None if b is None else self.noise * b
        if messages is None:
            x = None if own is None else self.shrink * own
            new = _misfit(phi, y, x) / self.total
        else:
            x, last = messages
            new = _misfit(phi, y, x) + self.spread * last
            new /= self.total
        step = phi.adjoint(new)
        step *= self.noise
        for part in (x, own):
            if part is not None:
                step += part
        step *= self.shrink
        return step, new

    def solution(self, messages: Messages, places: slice = ALL) -> Array:
        """Return the first of the messages."""
        return messages[0][:, places]

    def move(self, new: Messages, old: Messages) -> Array:
        """Return the move of the first of the messages."""
        return new[0] - old[0]

    def dual(self, messages: Messages) -> Array:
        """Return the second of the messages."""
        return messages[1]


def _misfit(phi: Dictionary, y: Array | None, x: Array | None) -> Array:
    """Return ``y - Phi x``; None stands for zeros."""
    if x is None:
        return y
    fitted = phi.forward(x)
    return -fitted if y is None else y - fitted


def settle(sweeps: Sweeps, before: Before | None, share: float = SHARE) -> Swept | None:
    """Sweep until the solutions have settled against what they moved since the start; None if they do not.

    Where one direction is all that is left, which moves by the same factor in every sweep, its sum to
    infinity is taken at once; that is right for a factor above one, too. (Early in a fit there may be one:
    alpha depends on the data, and so is in a special relation to the dictionary.)

    Parameters
    ----------
    sweeps : Sweeps
        `OrthonormalSweeps` or `GaussianSweeps`.
    before : Before or None
        Where the last sweeps ended, before alpha was updated; None to begin from zero. Their number is hardly
        ever less by more than one from one update to the next, so moves are not looked at until then.
    share : float
        What may be left to go, as a share of the way from the start.
    """
    start = None if before is None else before.mean
    messages = None if before is None else sweeps.resumed(before)
    # A rate takes two moves.
    first_look = 0 if before is None else before.sweeps - FEWER - 1
    # The last move, kept while sweeps are slow, its length and that of all, or infinity.
    before_last, size, path, summed_up = None, np.inf, np.inf, False
    for count in range(1, MOST_SWEEPS + 1):
        new = sweeps.advance(messages)
        if messages is None or count < first_look:
            messages = new
            continue
        move = sweeps.move(new, messages)
        last, size = size, sweeps.scale * norm(move)
        if not np.isfinite(size):
            return None
        rate = size / last if last > 0 else 0.0
        # What is left to go, where every move is shorter than the one before by as much as the last.
        left = size * rate / (1 - rate) if rate < 1 else np.inf
        path += size
        if rate < 1 and left <= share * path and np.isfinite(last):  # no more than the path: no need to look
            path = _distance(sweeps, new, start)
            if left <= share * path:
                return Swept(sweeps.solution(new), sweeps.dual(new), count, summed_up)
        if before_last is not None:
            factor = inner(move, before_last) * (sweeps.scale / last) ** 2
            if abs(factor) > ALIKE * rate and abs(1 - factor) > NEARLY_ONE:
                path += size * abs(factor / (1 - factor))
                before_last, size, summed_up = None, np.inf, True
                del move  # a long vector
                messages = tuple(map(partial(_summed_up, factor), new, messages))
                continue
        before_last, messages = move if rate > SLOW else None, new
        del move, new  # long vectors
    return None


def _summed_up(factor: float, new: Array, old: Array) -> Array:
    """Return where moves lead of which every one is the last times a factor."""
    ahead = new - old
    ahead *= factor / (1 - factor)
    ahead += new
    return ahead


def _distance(sweeps: Sweeps, messages: Messages, start: Array | None) -> float:
    """Return how far the solutions that messages stand for are from the start, in short blocks."""
    total = 0.0
    for places in blocks(messages[0].shape[-1], CACHE_BLOCK):
        part = sweeps.solution(messages, places)
        if start is not None:
            part = part - start[:, places]
        total += inner(part, part)
    return total**0.5
