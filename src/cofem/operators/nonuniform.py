"""Fourier coefficients at any points, by the library finufft."""

from __future__ import annotations

from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from cofem._arrays import Array, as_shape, require_numpy, to_numpy
from cofem.operators.base import Operator
from cofem.operators.circulant import CirculantGram, nearest_to_lags
from cofem.operators.squares import Constant
from cofem.operators.symbols import outer
from cofem.operators.transforms import dispatch

#: Accuracy asked of finufft, near the best it has.
ACCURACY = {"complex128": 1e-13, "complex64": 1e-6}


class NUFFT(Operator):
    """Fourier coefficients of a line, picture or volume at any points, as radial and spiral MRI has them.

    ``y[m] = sum_r x[r] exp(-2 pi i sum_d points[m, d] (r[d] - shape[d] // 2) / shape[d])``, divided by
    ``sqrt(prod(shape))``. At whole numbers these are the entries of `FFT`, with the origin in the middle of
    the picture. The adjoint is exact up to rounding; the transform itself is accurate to 1e-13 (single
    precision: 1e-6). It needs the extra ``nufft`` (finufft). SigPy's ``linop.NUFFT`` has the same points and
    scale.

    Parameters
    ----------
    points : array_like of shape (M, d)
        Frequencies in cycles over the extent of the picture, within ``-shape[d] / 2`` and ``shape[d] / 2``
        for frequencies below the grid's. Shape (M,) will do for a line.
    shape : int or tuple of int
        Shape of the picture, of d = 1, 2 or 3 axes.

    Examples
    --------
    >>> import numpy as np
    >>> F = NUFFT([0.0, 0.5], 4)
    >>> bool(np.allclose(F @ np.array([0.0, 0.0, 1.0, 0.0]), [0.5, 0.5]))  # a point in the middle
    True
    """

    def __init__(self, points: Any, shape: Any) -> None:
        self.signal_shape = as_shape(shape)
        points = to_numpy(points)
        if points.dtype.kind not in "iuf":
            raise TypeError(f"points must be real numbers, got dtype {points.dtype}")
        points = np.array(points, dtype=np.float64)  # a copy
        axes = len(self.signal_shape)
        if axes > 3:
            raise ValueError(f"shape must have 1, 2 or 3 axes, got {self.signal_shape}")
        points = points[:, None] if points.ndim == 1 and axes == 1 else points
        if points.ndim != 2 or points.shape[1] != axes or points.shape[0] == 0:
            raise ValueError(f"points must have shape (M, {axes}) for this shape, got {points.shape}")
        if not np.isfinite(points).all():
            raise ValueError("points must be finite, got NaN or infinite values")
        _finufft()
        self.points = points
        # Angles within one turn: a phase has no more digits than these.
        angles = 2 * np.pi * np.remainder(points / self.signal_shape + 0.5, 1.0) - np.pi
        self._angles = [np.ascontiguousarray(angles[:, axis]) for axis in range(axes)]
        # Leaving out whole turns of a phase that is counted from the middle is right: the places are whole.
        self._plans: dict[tuple[int, int, str], Any] = {}
        super().__init__((points.shape[0], prod(self.signal_shape)), is_complex=True)

    def _forward(self, x: Array) -> Array:
        require_numpy(x, "NUFFT")
        return self._transform(2, x, (self.shape[0],))

    def _adjoint(self, y: Array) -> Array:
        require_numpy(y, "NUFFT")
        return self._transform(1, y, (self.shape[1],))

    def _transform(self, kind: int, x: np.ndarray, out_shape: tuple[int, ...]) -> np.ndarray:
        dtype = np.result_type(x.dtype, np.complex64)
        batch = x.shape[:-1]
        count = prod(batch)
        if count == 0:
            return np.zeros((*batch, *out_shape), dtype)
        inner = (self.shape[0],) if kind == 1 else self.signal_shape
        rows = np.ascontiguousarray(x, dtype=dtype).reshape(inner if count == 1 else (count, *inner))
        out = self._plan(kind, count, dtype.name).execute(rows)
        scale = dtype.type(prod(self.signal_shape) ** -0.5)
        return (out * scale).reshape(*batch, *out_shape)

    def _plan(self, kind: int, count: int, dtype: str) -> Any:
        """Return finufft's plan for so many vectors, made once."""
        key = (kind, count, dtype)
        if key not in self._plans:
            if len(self._plans) >= 8:  # batches of many sizes, as conjugate gradients have them
                self._plans.clear()
            plan = _finufft().Plan(
                kind,
                self.signal_shape,
                n_trans=count,
                eps=ACCURACY[dtype],
                isign=1 if kind == 1 else -1,
                dtype=dtype,
            )
            real = np.float64 if dtype == "complex128" else np.float32
            plan.setpts(*(angles.astype(real) for angles in self._angles))
            self._plans[key] = plan
        return self._plans[key]

    def _gram(self, x: Array) -> Array:
        # It depends on the lag between two places alone: a convolution (32 spokes of 128 x 128 seen by eight
        # coils, four vectors: 0.12 s in place of 0.15 s).
        require_numpy(x, "NUFFT")
        dtype = np.result_type(x.dtype, np.complex64)
        padded = tuple(2 * n for n in self.signal_shape)
        arrays = np.asarray(x, dtype=dtype).reshape(*x.shape[:-1], *self.signal_shape)
        spectra = dispatch.padded_spectrum(arrays, padded, real=False)
        spectra *= self._response.astype(spectra.real.dtype)
        found = dispatch.from_spectrum(spectra, padded, real=False)
        inside = tuple(slice(0, n) for n in self.signal_shape)
        return found[(..., *inside)].reshape(x.shape)

    @cached_property
    def _response(self) -> np.ndarray:
        """What the spectrum of a padded picture is multiplied by."""
        lags = self._lag_gram()
        for axis in range(lags.ndim):  # no two places are that far from each other
            lags[(slice(None),) * axis + (0,)] = 0
        return np.ascontiguousarray(np.fft.fftn(np.fft.ifftshift(lags)).real)

    def _lag_gram(self) -> np.ndarray:
        modes = tuple(2 * n for n in self.signal_shape)
        plan = _finufft().Plan(1, modes, eps=ACCURACY["complex128"], isign=1, dtype="complex128")
        plan.setpts(*self._angles)
        ones = np.ones(self.shape[0], np.complex128)
        return np.asarray(plan.execute(ones)).reshape(modes) / self.shape[1]

    def _nearest_circulant(self) -> CirculantGram:
        overlap = [1 - np.abs(np.arange(-n, n)) / n for n in self.signal_shape]
        return nearest_to_lags(self._lag_gram() * outer(overlap))

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_plans": {}}  # plans cannot be pickled, and are made again

    def _abs2(self) -> Operator:
        return Constant(1 / self.shape[1], self.shape)

    def _take_rows(self, indices: np.ndarray) -> Operator:
        return NUFFT(self.points[indices], self.signal_shape)

    def _column_shape(self) -> tuple[int, ...]:
        return self.signal_shape

    def _expression(self) -> str:
        shape = self.signal_shape[0] if len(self.signal_shape) == 1 else self.signal_shape
        return f"NUFFT({self.shape[0]} points, {shape})"


def _finufft() -> Any:
    try:
        import finufft
    except ImportError as error:
        raise ImportError('NUFFT needs finufft: pip install "cofem[nufft]"') from error
    return finufft
