"""Sums in which what arrived decays by one factor from each place to the next."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

#: Relative differences between ratios of neighbouring entries of a kernel that are rounding, by precision.
SAME_RATIO = {"float64": 1e-9, "float32": 1e-5}
#: Fewest entries of a kernel that tell a decay.
LEAST_ENTRIES = 8
#: Share of its first entry that a kernel may break off at; see also `Decay.error`.
BROKEN_OFF = 0.01


class Decay(NamedTuple):
    """``Phi^H Phi = S G^-T W G^-1 S``, where ``(G c)_i = c_i - ratio c_{i-1}``: W and S are diagonal.

    Attributes
    ----------
    ratio : float
        What is left from one place to the next, between 0 and 1.
    seen : ndarray of shape (D,)
        W: the squared weight with which the data see each place of the sum; 0 where they do not.
    scale : ndarray of shape (D,) or None
        S; None for the identity.
    ring : bool
        Whether the last place is followed by the first.
    left_out : float
        Share of a column's energy by which it is shorter than the decay, since the kernel breaks off.
    """

    ratio: float
    seen: np.ndarray
    scale: np.ndarray | None = None
    ring: bool = False
    left_out: float = 0.0

    def error(self, g: np.ndarray, noise_var: float) -> float:
        """Return how far the posterior with prior variances g may be off, since kernels break off.

        Where all places are seen, a shift of the sum is seen as well as the sum itself, so that nothing
        changes by more than what a kernel breaks off at. What is not seen may arrive where it is: there the
        strength counts that is left out, in units of the noise.

        Examples
        --------
        >>> import numpy as np
        >>> round(Decay(0.5, np.ones(3), left_out=1e-4).error(np.array([3.0, 0.1, 1.0]), 1e-9), 6)
        0.01
        >>> unseen = Decay(0.9, np.array([1.0, 0.0, 1.0]), left_out=1e-4)
        >>> round(unseen.error(np.array([3.0, 0.1, 1.0]), 0.01), 6)
        0.06
        """
        if not self.left_out:
            return 0.0
        least, most = float(self.seen.min()), float(self.seen.max())
        if least > 0:
            return float((self.left_out * most / least) ** 0.5)
        strength = float((g if self.scale is None else g * self.scale**2).max())
        gaps = np.diff(np.flatnonzero(self.seen), prepend=-1, append=self.seen.size)
        energy = min(1 / (1 - self.ratio**2), float(gaps.max()))
        return self.left_out * strength * most * energy / noise_var


def decay_of(kernel: np.ndarray, length: int, ring: bool = False) -> Decay | None:
    """Return the decay of a causal convolution of `length` samples, if it is one.

    Examples
    --------
    >>> import numpy as np
    >>> found = decay_of(2 * 0.5 ** np.arange(10), 3)
    >>> found.ratio, found.seen.tolist()
    (0.5, [4.0, 4.0, 4.0])
    >>> decay_of(np.array([1.0, 0.5, 0.4]), 3) is None
    True
    """
    if kernel.ndim != 1 or kernel.size < LEAST_ENTRIES or np.iscomplexobj(kernel) or not kernel[0]:
        return None
    entries = kernel[:length].astype(np.float64) / float(kernel[0])
    if entries.size < 2 or not 0 < entries[1] < 1:
        return None
    ratio = float(entries[1])
    wanted = ratio ** np.arange(entries.size)
    if np.abs(entries - wanted).max() > SAME_RATIO[kernel.dtype.name]:
        return None
    if (ring or kernel.size < length) and wanted[-1] * ratio > BROKEN_OFF:
        return None
    shorter = float(wanted[-1] * ratio) ** 2 if ring or kernel.size < length else 0.0
    return Decay(ratio, np.full(length, float(kernel[0]) ** 2), ring=ring, left_out=shorter)
