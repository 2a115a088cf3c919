"""Finite differences of arrays: what is sparse in pictures, volumes and signals with jumps or bends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import combinations, product
from math import prod, sqrt
from typing import Any, NamedTuple

import array_api_compat
import numpy as np
import scipy.sparse

from cofem._arrays import Array, as_shape, namespace, squared_modulus
from cofem.operators.base import Operator
from cofem.operators.boxes import Box
from cofem.operators.circulant import CirculantGram
from cofem.operators.symbols import angles, outer

Stencil = tuple[float, ...]

_BOUNDARIES = ("free", "periodic")
_FIRST: Stencil = (-1.0, 1.0)
_SECOND: Stencil = (1.0, -2.0, 1.0)
_MIXED: Stencil = (-sqrt(2), sqrt(2))


class Band(NamedTuple):
    """One kind of difference: a stencil for each axis that it goes along, and where its rows are."""

    stencils: dict[int, Stencil]
    shape: tuple[int, ...]
    start: int

    @property
    def stop(self) -> int:
        """Where the next band starts."""
        return self.start + prod(self.shape)


class Stencils(Operator):
    """Correlations of an array with small separable stencils, stacked.

    Parameters
    ----------
    shape : tuple of int
        Shape of the array that vectors flatten in C order.
    bands : sequence of dict
        Stencils by axis, for each band. The origin of a stencil of two is its first entry, of one of three
        its second.
    boundary : {"free", "periodic"}
        Whether only places count where the whole stencil is inside, or the array repeats.

    Examples
    --------
    >>> import numpy as np
    >>> Stencils((4,), [{0: (1.0, 1.0)}], "free") @ np.arange(4.0)
    array([1., 3., 5.])
    """

    def __init__(self, shape: tuple[int, ...], bands: Sequence[dict[int, Stencil]], boundary: str) -> None:
        self.signal_shape = shape
        self.boundary = boundary
        self._bands: list[Band] = []
        start = 0
        for stencils in bands:
            lengths = list(shape)
            if boundary == "free":
                for axis, stencil in stencils.items():
                    lengths[axis] += 1 - len(stencil)
            if min(lengths) > 0:
                self._bands.append(Band(stencils, tuple(lengths), start))
                start = self._bands[-1].stop
        super().__init__((start, prod(shape)))

    def _forward(self, x: Array) -> Array:
        # Written as they come, so that the differences are not in memory twice.
        shape = (*x.shape[:-1], self.shape[0])
        out = namespace(x).empty(shape, dtype=x.dtype, device=array_api_compat.device(x))
        self._forward_into(x, out)
        return out

    def _forward_into(self, x: Array, out: Array) -> None:
        xp, batch = namespace(x), x.shape[:-1]
        arrays = xp.reshape(x, (*batch, *self.signal_shape))
        for band in self._bands:
            piece = arrays
            for axis, stencil in band.stencils.items():
                piece = self._correlate(piece, stencil, axis)
            out[..., band.start : band.stop] = xp.reshape(piece, (*batch, prod(band.shape)))

    def _adjoint(self, y: Array) -> Array:
        xp, batch = namespace(y), y.shape[:-1]
        total = xp.zeros((*batch, *self.signal_shape), dtype=y.dtype, device=array_api_compat.device(y))
        for band in self._bands:
            self._spread_band(xp.reshape(y[..., band.start : band.stop], (*batch, *band.shape)), band, total)
        return xp.reshape(total, (*batch, self.shape[1]))

    def _spread_band(self, piece: Array, band: Band, total: Array) -> None:
        """Add the transpose of a band to `total`."""
        xp, device = namespace(piece), array_api_compat.device(piece)
        *inner, last = reversed(band.stencils.items())
        for axis, stencil in inner:
            lengths = list(piece.shape)
            lengths[axis - len(self.signal_shape)] = self.signal_shape[axis]
            spread = xp.zeros(tuple(lengths), dtype=piece.dtype, device=device)
            self._spread(piece, stencil, axis, spread)
            piece = spread
        self._spread(piece, last[1], last[0], total)

    def _add_weighted_product(self, x: Array, weights: Array, factor: float, out: Array) -> None:
        xp, shape = namespace(x), (*x.shape[:-1], *self.signal_shape)
        arrays, total = xp.reshape(x, shape), xp.reshape(out, shape)  # a view, of what is in order
        for band in self._bands:
            piece = arrays
            for axis, stencil in band.stencils.items():
                piece = self._correlate(piece, stencil, axis)
            piece *= xp.reshape(weights[band.start : band.stop], band.shape)
            piece *= factor
            self._spread_band(piece, band, total)

    def _part(self, start: int, length: int, axis: int) -> tuple[Any, ...]:
        """Return the index of ``length`` places along an axis."""
        return (..., slice(start, start + length), *(slice(None),) * (len(self.signal_shape) - 1 - axis))

    def _correlate(self, x: Array, stencil: Stencil, axis: int) -> Array:
        """Return the sum of shifted copies, each times its number."""
        n, along = self.signal_shape[axis], axis - len(self.signal_shape)
        if self.boundary == "free":
            parts = [x[self._part(k, n + 1 - len(stencil), axis)] for k in range(len(stencil))]
        else:
            parts = [rolled(x, _origin(stencil) - k, along) for k in range(len(stencil))]
        if stencil == _FIRST:  # half the passes over memory
            return parts[1] - parts[0]
        total = stencil[0] * parts[0]
        for number, part in zip(stencil[1:], parts[1:], strict=True):
            total += number * part
        return total

    def _spread(self, y: Array, stencil: Stencil, axis: int, out: Array) -> None:
        """Add the transpose of `_correlate` to `out`."""
        n, along = self.signal_shape[axis], axis - len(self.signal_shape)
        for k, number in enumerate(stencil):
            if self.boundary == "free":
                part, piece = self._part(k, n + 1 - len(stencil), axis), y
            else:
                part, piece = (...,), rolled(y, k - _origin(stencil), along)
            if number == 1:
                out[part] += piece
            elif number == -1:
                out[part] -= piece
            else:
                out[part] += number * piece

    def _column_shape(self) -> tuple[int, ...]:
        return self.signal_shape

    def _row_groups(self) -> np.ndarray:
        return np.repeat(np.arange(len(self._bands)), [prod(band.shape) for band in self._bands])

    def _row_places(self) -> np.ndarray:
        places = np.arange(self.shape[1]).reshape(self.signal_shape)
        return np.concatenate([places[box.places].ravel() for box in self._row_boxes()])

    def _row_parts(self) -> list[Operator]:
        return [Stencils(self.signal_shape, [band.stencils], self.boundary) for band in self._bands]

    def _row_boxes(self) -> tuple[Box, ...]:
        axes = range(len(self.signal_shape))
        found = []
        for band in self._bands:
            origins = tuple(_origin(band.stencils.get(axis, (1.0,))) for axis in axes)
            if self.boundary == "periodic":
                origins = (0,) * len(axes)
            found.append(Box(band.start, origins, band.shape))
        return tuple(found)

    def _band_symbols(self, basis: str) -> np.ndarray:
        return np.stack(list(self._each_band_symbol(basis)))

    def _each_band_symbol(self, basis: str) -> Iterator[np.ndarray]:
        at = angles(self.signal_shape, basis)
        for band in self._bands:
            factors = [np.ones(n) for n in self.signal_shape]
            for axis, stencil in band.stencils.items():
                waves = (c * np.exp(1j * k * at[axis]) for k, c in enumerate(stencil))
                factors[axis] = squared_modulus(sum(waves))
                if basis == "cosine" and self.boundary == "free" and stencil == _SECOND:
                    # Two of n places have none: of an axis of three (colours) two thirds of the energy.
                    factors[axis] *= 1 - 4 / self.signal_shape[axis] * np.cos(at[axis] / 2) ** 2
            yield outer(factors)

    def _sparse_matrix(self) -> scipy.sparse.csr_array:
        blocks = []
        for band in self._bands:
            factors = (
                self._along_axis(band.stencils.get(axis, (1.0,)), n)
                for axis, n in enumerate(self.signal_shape)
            )
            blocks.append(reduce(lambda a, b: scipy.sparse.kron(a, b, format="csr"), factors))
        return scipy.sparse.csr_array(scipy.sparse.vstack(blocks, format="csr"))

    def _add_weighted_gram(self, weights: np.ndarray, above: dict[int, np.ndarray]) -> bool:
        if self.boundary != "free":
            return False
        strides = np.cumprod((1, *self.signal_shape[:0:-1]))[::-1].tolist()
        for band in self._bands:
            weight = weights[band.start : band.stop].reshape(band.shape)
            points = _points(band, len(strides))
            flat = [sum(a * b for a, b in zip(at, strides, strict=True)) for at, _ in points]
            for i, j in product(range(len(points)), repeat=2):
                offset = flat[j] - flat[i]
                if offset < 0:  # the same numbers as above the diagonal
                    continue
                diagonal = above.setdefault(offset, np.zeros(self.shape[1], weights.dtype))
                ends = (slice(k, k + n) for k, n in zip(points[j][0], band.shape, strict=True))
                number = points[i][1] * points[j][1]
                target = diagonal.reshape(self.signal_shape)[tuple(ends)]
                target += weight if number == 1 else number * weight
        return True

    def _along_axis(self, stencil: Stencil, n: int) -> scipy.sparse.csr_array:
        """Return the matrix of one stencil along an axis of length ``n``."""
        first, rows = (_origin(stencil), n) if self.boundary == "periodic" else (0, n + 1 - len(stencil))
        i = np.arange(rows)
        columns = np.concatenate([(i + k - first) % n for k in range(len(stencil))])
        entries = (np.repeat(stencil, rows), (np.tile(i, len(stencil)), columns))
        return scipy.sparse.coo_array(entries, shape=(rows, n)).tocsr()

    def _circulant_gram(self) -> CirculantGram:
        half = self.signal_shape[-1] // 2 + 1
        eigenvalues = self._band_symbols("fourier").sum(axis=0)[..., :half]
        return CirculantGram(self.signal_shape, eigenvalues, True, self.boundary == "periodic")

    def _abs2(self) -> Operator | None:
        used = [(self.signal_shape[axis], s) for band in self._bands for axis, s in band.stencils.items()]
        if any(n < len(stencil) for n, stencil in used):  # entries fall on each other as it repeats
            return None
        squares = [
            {axis: tuple(c * c for c in stencil) for axis, stencil in band.stencils.items()}
            for band in self._bands
        ]
        return Stencils(self.signal_shape, squares, self.boundary)


class Gradient(Stencils):
    """Finite differences of an array along all of its axes, stacked.

    `row_groups` numbers the directions, and `row_places` says which place of the array a row belongs to.
    Directions along an axis that is too short for them have no rows.

    Parameters
    ----------
    shape : int or tuple of int
        Length of the signal, or shape of the array that vectors flatten in C order.
    boundary : {"free", "periodic"}
        "free": no difference across the border, so that an axis of length n has n - 1 first and n - 2 second
        differences. "periodic": the last place is followed by the first.
    order : {1, 2}
        1: first differences ``u[i + 1] - u[i]`` along each axis, which belong to place i.
        2: second differences ``u[i - 1] - 2 u[i] + u[i + 1]`` along each axis, then the mixed ones of each
        pair of axes, ``u[i + 1, j + 1] - u[i + 1, j] - u[i, j + 1] + u[i, j]`` times the square root of 2.
        The sum of squares at a place is then the squared Frobenius norm of the Hessian, in which a mixed
        derivative stands twice. For both orders: ``vstack([Gradient(shape), Gradient(shape, order=2)])``.
    mixed : bool
        Whether second differences have the mixed ones, which are half of those of a volume.
    axes : int or tuple of int, optional
        The axes that differences go along, by default all: with ``axes=(1, 2)`` those of each picture of a
        series of shape (time, height, width), and none from one time to the next.

    Examples
    --------
    >>> import numpy as np
    >>> B = Gradient((2, 3))
    >>> B @ np.array([0.0, 0.0, 1.0, 2.0, 2.0, 3.0])
    array([2., 2., 2., 0., 1., 0., 1.])
    >>> B.row_groups
    array([0, 0, 0, 1, 1, 1, 1])
    >>> B.row_places
    array([0, 1, 2, 0, 1, 3, 4])
    >>> Gradient(5, order=2) @ np.arange(5.0) ** 2
    array([2., 2., 2.])
    >>> Gradient((4, 4), order=2).shape, Gradient((4, 4), order=2, mixed=False).shape
    ((25, 16), (16, 16))
    >>> Gradient((2, 3), axes=1) @ np.array([0.0, 0.0, 1.0, 2.0, 2.0, 3.0])
    array([0., 1., 0., 1.])
    """

    def __init__(
        self, shape: Any, boundary: str = "free", order: int = 1, mixed: bool = True, axes: Any = None
    ) -> None:
        lengths = as_shape(shape)
        if boundary not in _BOUNDARIES:
            raise ValueError(f"boundary must be one of {', '.join(_BOUNDARIES)}, got {boundary!r}")
        if isinstance(order, bool) or order not in (1, 2):
            raise ValueError(f"order must be 1 or 2, got {order!r}")
        self.order, self.mixed = int(order), bool(mixed)
        self.axes = as_axes(axes, len(lengths))
        long = [axis for axis in self.axes if lengths[axis] > 1]
        bands: list[dict[int, Stencil]] = [{axis: _FIRST if order == 1 else _SECOND} for axis in long]
        if order == 2 and mixed:
            bands += [{first: _FIRST, second: _MIXED} for first, second in combinations(long, 2)]
        super().__init__(lengths, bands, boundary)
        if self.shape[0] == 0:
            raise ValueError(
                f"shape must have an axis longer than {order}, got {lengths}: no difference fits"
                + ("" if axes is None else f" along axes {self.axes}")
            )

    def _spectral_norm(self) -> float:
        # Of free second differences along one axis, neither basis has the eigenvectors.
        if self.boundary == "free" and self.order == 2:
            return super()._spectral_norm()
        symbols = self._band_symbols("fourier" if self.boundary == "periodic" else "cosine")
        return float(np.sqrt(symbols.sum(axis=0).max()))

    def _expression(self) -> str:
        shape = self.signal_shape[0] if len(self.signal_shape) == 1 else self.signal_shape
        boundary = "" if self.boundary == "free" else f", {self.boundary!r}"
        order = "" if self.order == 1 else f", order={self.order}"
        mixed = "" if self.mixed or self.order == 1 else ", mixed=False"
        all_axes = self.axes == tuple(range(len(self.signal_shape)))
        axes = "" if all_axes else f", axes={self.axes}"
        return f"Gradient({shape}{boundary}{order}{mixed}{axes})"

    def _repeated(self, count: int) -> Operator:
        shape, axes = (count, *self.signal_shape), tuple(axis + 1 for axis in self.axes)
        return Gradient(shape, self.boundary, self.order, self.mixed, axes)


def as_axes(axes: Any, ndim: int) -> tuple[int, ...]:
    """Return the axes in order, without signs."""
    if axes is None:
        return tuple(range(ndim))
    given = axes if isinstance(axes, list | tuple) else (axes,)
    whole = all(isinstance(axis, int | np.integer) and not isinstance(axis, bool) for axis in given)
    found = tuple(sorted({int(axis) % ndim for axis in given if whole and -ndim <= axis < ndim}))
    if not found or len(found) != len(given):
        raise ValueError(f"axes must be distinct numbers from {-ndim} to {ndim - 1}, got {axes!r}")
    return found


def _points(band: Band, ndim: int) -> list[tuple[tuple[int, ...], float]]:
    """Return the places that a row of a band looks at, from its first one on, and its entries there."""
    stencils = [band.stencils.get(axis, (1.0,)) for axis in range(ndim)]
    places = product(*(range(len(stencil)) for stencil in stencils))
    return [(at, prod(stencil[k] for stencil, k in zip(stencils, at, strict=True))) for at in places]


def _origin(stencil: Stencil) -> int:
    return (len(stencil) - 1) // 2


def rolled(x: Array, shift: int, axis: int) -> Array:
    """Return the array moved around along an axis, or itself where it does not move."""
    return namespace(x).roll(x, shift, axis=axis) if shift else x
