"""SQUAREM: fewer outer steps by extrapolating pairs of EM steps, with a safeguard."""

from __future__ import annotations

from cofem._arrays import Array, at_most, inner, namespace, norm, number_like, overwrite, total
from cofem._blocks import LONG_VECTOR

#: Longest extrapolation. 8 ended in worse optima near the recovery limit (DCT, f = 8: NRMSE 33 % against
#: 2.3 %); on DCT problems 3 took fewer applications than 2 or 4.
LONGEST = 3.0
#: Largest logarithm of a growth of precisions in one leap; single precision holds exp(88).
LARGEST_LOG = 80.0
#: Weight below which a precision hardly counts. With 0.1 and 0.5 MacKay's update took 10 and 36 % more steps.
HARDLY = 0.01
#: Share of the prior in what is known of a coefficient (``alpha s``) from which on it is near zero. The share
#: of the data that all of these explain, and the factor for their precisions, from which on they are worth a
#: step of their own: errors fell where the share was 0.84 and more (features 100 x 3000 to 100 x 20 000, DCT
#: samples with f = 32), rose where it was 0.6 to 0.65 (f = 16) and stayed as they were below 0.2 (coherent).
NEAR_ZERO, MOST_OF_THE_DATA, WORTH_A_STEP = 0.9, 0.75, 1.2


def extrapolate(
    previous: Array, alpha: Array, image: Array, longest: float = LONGEST, weights: Array | None = None
) -> Array | None:
    """Go further along two EM steps (Varadhan and Roland 2008); None where that is no further.

    Two steps r and r + v from ``log alpha_0`` are extrapolated to ``log alpha_0 + 2 a r + a^2 v`` with
    ``a = ||r|| / ||v||``, between 1 (where the second step leads) and `longest`.

    Parameters
    ----------
    previous, alpha, image : arrays of shape (D,)
        Where the pair began, where its first step led and where its second one would.
    longest : float
        Largest a.
    weights : array of shape (D,), optional
        How far each precision counts in both norms, from 0 to 1; those that hardly do take the second step
        and no leap. By default all are alike.

    Examples
    --------
    >>> import numpy as np
    >>> steps = np.exp(np.array([[0.0], [1.0], [1.5]]))  # each half as long as the one before
    >>> np.log(extrapolate(*steps)).round(6).tolist()  # where they would end
    [2.0]
    """
    r = overwrite(alpha / previous, "log")
    v = overwrite(image / alpha, "log")
    v -= r
    way, size = (norm(r), norm(v)) if weights is None else (norm(weights * r), norm(weights * v))
    a = min(longest, max(1.0, way / size)) if size > 0 else 1.0
    if a == 1.0:
        return None
    v *= a * a
    r *= 2 * a
    v += r
    leap = overwrite(at_most(v, LARGEST_LOG), "exp")
    leap *= previous
    return leap if weights is None else namespace(v).where(weights < HARDLY, image, leap)


def scaled_together(alpha: Array, variance: Array, square: Array, n_rows: int) -> Array | None:
    """Scale the precisions of all coefficients near zero by one factor, where they explain most of the data.

    EM takes these to zero one by one, by a factor of about ``1 + N / D`` in a step: hundreds of steps where D
    is many times N. Along their common scale the evidence is largest where ``sum alpha mean^2`` is
    ``sum (1 - alpha s)``, and one step by the ratio of both leads nearly there (MacKay's update, of a number
    that thousands of coefficients determine). Data that hardly any coefficient explains by itself are noise.

    Parameters
    ----------
    alpha, variance, square : arrays of shape (D,)
        Precisions, posterior variances and squares of the posterior mean.
    n_rows : int
        Number of data.

    Returns
    -------
    array of shape (D,) or None
        The precisions; None where there is nothing to gain.

    Examples
    --------
    >>> import numpy as np
    >>> alpha = np.array([1.0] + 20 * [2.0])  # the first is known well, of the others data say little
    >>> variance, square = np.array([0.01] + 20 * [0.45]), np.array([9.0] + 20 * [0.025])
    >>> scaled_together(alpha, variance, square, n_rows=2)[:3].round(6).tolist()
    [1.0, 4.0, 4.0]
    >>> scaled_together(alpha, variance, square, n_rows=10)  # they do not take up the data
    """
    xp = namespace(alpha)
    left = alpha * variance
    near = left >= number_like(alpha, NEAR_ZERO)
    zeros = xp.zeros_like(alpha)
    freedom = total(xp.where(near, 1 - left, zeros))
    used = total(xp.where(near, alpha * square, zeros))
    if freedom < MOST_OF_THE_DATA * n_rows or not freedom > WORTH_A_STEP * used > 0:
        return None
    return xp.where(near, alpha * number_like(alpha, freedom / used), alpha)


class Leap:
    """A leap from one alpha to another, and what EM maximises along it.

    Parameters
    ----------
    start, end : arrays of shape (D,)
        The precisions between which the leap was.

    Examples
    --------
    >>> import numpy as np
    >>> Leap(np.array([1.0, 2.0]), np.exp([1.0, 0.0])).slope(np.array([3.0, 0.0]))
    3.0
    """

    def __init__(self, start: Array, end: Array) -> None:
        self.start, self.end = start, end
        self._way: Array | None = None

    def slope(self, slope: Array) -> float:
        """Return the derivative along it, given those with respect to each ``log alpha_j``, shape (D,)."""
        way = overwrite(self.end / self.start, "log") if self._way is None else self._way
        if way.shape[0] < LONG_VECTOR:  # asked for at both ends
            self._way = way
        return inner(slope, way)


def overshot(slope_at_start: float, slope_at_end: float) -> bool:
    """Tell whether what EM maximises fell along a leap, by the trapezoidal rule on its derivative.

    The derivative comes from moments that are there anyway; the evidence itself would need a
    determinant.
    """
    return slope_at_start + slope_at_end < 0
