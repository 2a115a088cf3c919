"""Receive coils: one picture, seen by several coils of different sensitivity."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse

from cofem._arrays import (
    Array,
    DeviceCache,
    as_floating,
    conj,
    in_precision,
    is_complex,
    namespace,
    precision_of,
    squared_modulus,
    to_numpy,
)
from cofem.operators.base import Operator
from cofem.operators.circulant import CirculantGram, nearest_to_lags
from cofem.operators.facts import Facts
from cofem.operators.sampling import Diagonal
from cofem.operators.transforms import dispatch


class Coils(Operator):
    """A picture as each of C coils sees it: the picture times a map of sensitivities, coil after coil.

    With ``F = Mask(k) @ FFT(shape)`` or ``F = NUFFT(points, shape)``, the model of parallel imaging (SENSE)
    is ``block_diag([F] * C) @ Coils(maps)``, and its data are those of the first coil, then of the second,
    and so on.

    Parameters
    ----------
    maps : array_like of shape (C, ...)
        Sensitivities, real or complex; given, or estimated from the data (ESPIRiT).
    noise_cov : array_like of shape (C, C), optional
        Covariance of the coils' noise, Hermitian and positive definite. The maps are then those of combined
        coils whose noise is independent and of variance 1; `whiten` combines the data alike. Fit these with
        ``noise_std=1``.

    Examples
    --------
    >>> import numpy as np
    >>> from cofem.operators import FFT, Coils, Mask, block_diag
    >>> maps = np.array([[1.0, 1.0, 0.5, 0.0], [0.0, 0.5, 1.0, 1.0]])
    >>> Coils(maps) @ np.array([1.0, 2.0, 3.0, 4.0])
    array([1. , 2. , 1.5, 0. , 0. , 1. , 3. , 4. ])
    >>> (block_diag([Mask([0, 2], 4) @ FFT(4)] * 2) @ Coils(maps)).shape
    (4, 4)
    """

    def __init__(self, maps: Any, noise_cov: Any = None) -> None:
        maps = as_floating(maps, "maps")
        if maps.ndim < 2 or min(maps.shape) < 1:
            raise ValueError(f"maps must have shape (coils, *shape of the picture), got {tuple(maps.shape)}")
        xp = namespace(maps)
        if not bool(xp.all(xp.isfinite(maps))):
            raise ValueError("maps must hold finite numbers, got NaN or infinite entries")
        self.signal_shape = tuple(maps.shape[1:])
        self.whitening: np.ndarray | None = None
        flat = xp.reshape(maps, (maps.shape[0], -1))
        if noise_cov is not None:
            self.whitening = _whitening(noise_cov, maps.shape[0])
            white = self.whitening.astype(np.result_type(self.whitening.dtype, precision_of(maps)))
            flat = as_floating(in_precision(white @ to_numpy(flat), precision_of(maps)), "maps")
        count, size = flat.shape
        power = to_numpy(squared_modulus(flat)).sum(axis=0)
        is_constant = np.ptp(power) <= 4 * np.finfo(power.dtype).eps * power.max()
        super().__init__(
            (count * size, size),
            is_complex=is_complex(flat),
            precision=precision_of(flat),
            facts=Facts(column_gram=float(power.max()) if is_constant else None, one_per_row=True),
        )
        self.maps = flat
        self._cached = DeviceCache(flat)
        self._power = DeviceCache(
            power if isinstance(flat, np.ndarray) else xp.sum(squared_modulus(flat), axis=0)
        )

    def whiten(self, data: Any) -> np.ndarray:
        """Combine the data of the coils as the maps were, so that the noise is independent, of variance 1.

        Parameters
        ----------
        data : array_like of shape (C, M) or (C * M,)
            M data of each coil.

        Returns
        -------
        ndarray of the shape of `data`
            The data themselves if there was no `noise_cov`.

        Examples
        --------
        >>> import numpy as np
        >>> coils = Coils(np.ones((2, 3)), noise_cov=[[4.0, 0.0], [0.0, 0.25]])
        >>> coils.whiten([[2.0], [1.0]])
        array([[1.],
               [2.]])
        """
        data = np.asarray(data)
        count = self.maps.shape[0]
        if data.ndim not in (1, 2) or data.size == 0 or data.shape[0] % count:
            raise ValueError(f"data must have shape ({count}, M) or ({count} * M,), got {data.shape}")
        if data.ndim == 2 and data.shape[0] != count:
            raise ValueError(f"data must have a row for each of the {count} coils, got shape {data.shape}")
        if self.whitening is None:
            return data
        return (self.whitening @ data.reshape(count, -1)).reshape(data.shape)

    def _device_array(self) -> Array | None:
        return self._cached.device_array

    def _forward(self, x: Array) -> Array:
        seen = x[..., None, :] * self._cached.like(x)
        return namespace(seen).reshape(seen, (*x.shape[:-1], self.shape[0]))

    def _adjoint(self, y: Array) -> Array:
        maps = self._cached.like(y)
        xp = namespace(y)
        return xp.sum(xp.reshape(y, (*y.shape[:-1], *maps.shape)) * conj(maps), axis=-2)

    def _gram(self, x: Array) -> Array:
        power = x * self._power.like(x)
        return power if is_complex(power) or not self.is_complex else power + 0j

    def _abs2(self) -> Operator:
        return Coils(squared_modulus(self.maps))

    def _row_parts(self) -> list[Operator]:
        return [Diagonal(self.maps[i]) for i in range(self.maps.shape[0])]

    def _nearest_of_views(self, each: Operator) -> CirculantGram | None:
        lags = each._lag_gram()
        padded = tuple(2 * n for n in self.signal_shape)
        if lags is None or lags.shape != padded:
            return None
        maps = to_numpy(self.maps).astype(np.complex128).reshape(-1, *self.signal_shape)
        power = squared_modulus(dispatch.padded_spectrum(maps, padded, real=False)).sum(axis=0)
        overlap = np.fft.fftshift(dispatch.from_spectrum(power.astype(np.complex128), padded, real=False))
        return nearest_to_lags(lags * overlap.conj() / self.shape[1])

    def _sparse_matrix(self) -> scipy.sparse.csr_array:
        parts = [part.sparse_matrix() for part in self._row_parts()]
        return scipy.sparse.csr_array(scipy.sparse.vstack(parts, format="csr"))

    def _column_shape(self) -> tuple[int, ...]:
        return self.signal_shape

    def _in_precision(self, precision: str) -> Operator:
        if precision == self.precision:
            return self
        maps = in_precision(self.maps, precision)
        return Coils(namespace(maps).reshape(maps, (maps.shape[0], *self.signal_shape)))

    def _expression(self) -> str:
        shape = self.signal_shape[0] if len(self.signal_shape) == 1 else self.signal_shape
        return f"Coils({self.maps.shape[0]} x {shape})"


def _whitening(noise_cov: Any, count: int) -> np.ndarray:
    """Return the matrix that makes the noise of the coils independent, of variance 1."""
    covariance = np.asarray(noise_cov)
    if covariance.shape != (count, count):
        raise ValueError(f"noise_cov must have shape ({count}, {count}), got {covariance.shape}")
    if not np.allclose(covariance, covariance.conj().T, rtol=1e-6, atol=1e-12 * np.abs(covariance).max()):
        raise ValueError("noise_cov must be Hermitian, as covariances are")
    try:
        factor = scipy.linalg.cholesky(covariance, lower=True)
    except (np.linalg.LinAlgError, ValueError) as error:
        raise ValueError(f"noise_cov must be positive definite and finite ({error})") from error
    return scipy.linalg.solve_triangular(factor, np.eye(count, dtype=factor.dtype), lower=True)
