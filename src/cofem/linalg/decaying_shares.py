"""Variances of impulses that decay by one factor from sample to sample, in a few passes."""

from __future__ import annotations

import numpy as np

from cofem.linalg.preconditioners.decays import factored, three_diagonals
from cofem.operators.decay import Decay


def decaying_shares(decay: Decay, g: np.ndarray, noise_var: float) -> np.ndarray:
    """Return posterior variances over prior variances, shape (D,).

    Without its own prior, an impulse is the difference of what the data after it and those before it say,
    which know nothing of each other. Their precisions are what is left of Q when it is factored from either
    end.

    Examples
    --------
    >>> import numpy as np
    >>> decay, g = Decay(0.5, np.array([1.0, 4.0, 1.0])), np.array([1.0, 3.0, 0.1])
    >>> C = 0.5 ** np.subtract.outer(np.arange(3), np.arange(3)) * np.tri(3)
    >>> Sigma = np.linalg.inv(C.T @ np.diag(decay.seen) @ C / 0.2 + np.diag(1 / g))
    >>> np.allclose(decaying_shares(decay, g, 0.2), np.diag(Sigma) / g)
    True
    """
    size, tiny = g.size, np.finfo(np.float64).tiny
    strength = g if decay.scale is None else g * decay.scale**2
    precision = noise_var / np.maximum(strength, tiny / np.finfo(np.float64).eps)
    if decay.ring:  # three times around: in the middle the ends are as good as forgotten
        decay = decay._replace(seen=np.tile(decay.seen, 3))
        precision = np.tile(precision, 3)
    main, beside = three_diagonals(decay, precision)
    before = factored(main, beside)[0]
    before[:-1] -= decay.ratio**2 * precision[1:]
    after = factored(main[::-1], beside[::-1])[0][::-1] - precision
    before, after = (np.maximum(x, decay.seen) for x in (before, after))
    known = after.copy()
    known[1:] *= before[:-1] / (before[:-1] + decay.ratio**2 * after[1:] + tiny)
    shares = precision / (precision + known)
    return shares[size : 2 * size] if decay.ring else shares
