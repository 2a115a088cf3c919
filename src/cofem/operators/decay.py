"""Sums in which what arrived decays by one factor from each place to the next."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

#: Relative differences between ratios of neighbouring entries of a kernel that are rounding, by precision.
SAME_RATIO = {"float64": 1e-9, "float32": 1e-5}
#: Fewest entries of a kernel that tell a decay.
LEAST_ENTRIES = 8
#: Share of its first entry that a kernel may break off at: what follows is then 1e-4 of its energy at most.
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
    """

    ratio: float
    seen: np.ndarray
    scale: np.ndarray | None = None
    ring: bool = False


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
    return Decay(ratio, np.full(length, float(kernel[0]) ** 2), ring=ring)
