"""Random probe vectors."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np

from cofem._arrays import Array, is_complex, namespace, on_device_of
from cofem._packing import packable

ProbeDistribution = Literal["rademacher", "gaussian"]


def draw_probes(
    n_probes: int, size: int, *, like: Array, rng: np.random.Generator, distribution: ProbeDistribution
) -> Array:
    """Draw probes of shape (n_probes, size): independent entries, mean 0, variance 1.

    They are drawn by NumPy and moved to the library, device and precision of `like`, so that the
    same seed gives the same probes everywhere.
    """
    if distribution == "rademacher":
        return draw_signs(n_probes, size, rng).probes(like)
    return namespace(like).astype(on_device_of(like, rng.standard_normal((n_probes, size))), like.dtype)


@packable("signs")
class Signs(NamedTuple):
    """Rademacher probes in a bit for each entry, as they are best kept.

    Attributes
    ----------
    bits : ndarray of uint8, shape (K, ceil(D / 8))
        The signs, eight to a byte.
    size : int
        Number D of entries.
    """

    bits: np.ndarray
    size: int

    def some(self, rows: slice) -> Signs:
        """Return some of the probes."""
        return Signs(self.bits[rows], self.size)

    def probes(self, like: Array) -> Array:
        """Return the probes, shape (K, D), in the library, device and precision of `like`.

        Examples
        --------
        >>> import numpy as np
        >>> Signs(np.array([[0b10100000]], dtype=np.uint8), 4).probes(np.zeros(1)).tolist()
        [[1.0, -1.0, 1.0, -1.0]]
        """
        signs = np.unpackbits(self.bits, axis=1, count=self.size).view(np.int8)
        signs *= 2
        signs -= 1
        return namespace(like).astype(on_device_of(like, signs), like.dtype)


def draw_signs(n_probes: int, size: int, rng: np.random.Generator) -> Signs:
    """Draw independent Rademacher probes."""
    return Signs(rng.integers(0, 256, size=(n_probes, -(-size // 8)), dtype=np.uint8), size)


def random_signs(shape: tuple[int, int], like: Array, rng: np.random.Generator) -> Array:
    """Draw random signs, in the library, type and device of `like`; complex ones are (+-1 +- i) / sqrt(2).

    Mean and covariance are those of standard normal numbers.

    Examples
    --------
    >>> import numpy as np
    >>> x = random_signs((1, 1000), np.zeros(1, np.complex64), np.random.default_rng(0))
    >>> x.dtype, bool(np.allclose(abs(x), 1)), bool(abs(np.mean(x)) < 0.1)
    (dtype('complex64'), True, True)
    """
    if not is_complex(like):
        return draw_signs(*shape, rng).probes(like)
    real, imaginary = (draw_signs(*shape, rng).probes(namespace(like).real(like)) for _ in range(2))
    return (real + 1j * imaginary) * 0.5**0.5
