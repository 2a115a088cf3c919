"""A dictionary whose chunks live on the workers of a Dask cluster; vectors stay with the caller."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from cofem._arrays import Array, conj, require_numpy
from cofem._blocks import CHUNK_BYTES, WRITTEN_OUT, blocks
from cofem.operators.action import FusedGram, Weights
from cofem.operators.base import Operator
from cofem.operators.chunk_sums import Question, Tree, numbers_at_once
from cofem.operators.chunks import BlockRecipe, Layout, Recipe
from cofem.operators.cluster import DaskWorkers, Engine, LocalThreads, Traffic, active_client
from cofem.operators.entries import gram_of_columns


class Distributed(Operator):
    """A dictionary larger than one machine: chunks on the workers of a Dask cluster, vectors here.

    A chunk is some rows or some columns of Phi. It is loaded once, on the worker that keeps it, and again
    if that worker is lost. A product sends vectors out and gets vectors back, in one round trip:
    ``Phi^H Phi x`` for chunks of rows, ``Phi diag(g) Phi^H v`` for chunks of columns, and ``Phi x`` and
    ``Phi^H y`` for either. Cut columns where N < D: what travels is then far less.

    Results have the same bits for any number of workers: partial sums are added in an order that the number
    of chunks decides, in double precision, with one BLAS thread. (Processors of another kind may round
    otherwise.) Works on NumPy arrays.

    Parameters
    ----------
    load : callable
        From the number of a chunk, 0 for the first, to that chunk: an array, a SciPy sparse matrix or any
        operator. Called on a worker, so it should read or compute the chunk there. It must return the same
        each time.
    shape : tuple of int
        ``(N, D)``.
    chunks : pair
        Rows and columns of a chunk, as Dask has them: sizes, tuples of sizes, or -1 for all. Either rows or
        columns are cut.
    client : distributed.Client, optional
        The cluster; the active client by default. Without one, chunks are kept in this process and threads
        share the work.
    dtype : dtype
        What arrays are kept as on the workers: complex numbers, floating-point numbers, or integers as
        small as they are (genotypes: ``np.int8``). They are converted a few rows at a time where a fit needs
        another type.
    retries : int
        How often a chunk that could not be loaded is asked for again, and how often in a row the worker of a
        chunk may be lost.

    Examples
    --------
    >>> import numpy as np
    >>> def load(i):  # columns 3 i to 3 i + 2 of a matrix, on whatever worker this runs
    ...     return np.random.default_rng(i).standard_normal((4, 3))
    >>> Phi = Distributed(load, shape=(4, 6), chunks=(4, 3))
    >>> Phi
    <Distributed(4, 6, 2 chunks of 3 columns), shape (4, 6)>
    >>> x = np.arange(6.0)
    >>> np.allclose(Phi @ x, load(0) @ x[:3] + load(1) @ x[3:])
    True
    """

    def __init__(
        self,
        load: Callable[[int], Any],
        shape: tuple[int, int],
        chunks: Any,
        client: Any = None,
        *,
        dtype: Any = np.float64,
        retries: int = 3,
    ) -> None:
        if not callable(load):
            raise TypeError(f"load must be a function of the number of a chunk, got {type(load).__name__}")
        if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
            raise ValueError(f"retries must be an integer of at least 0, got {retries!r}")
        recipe = Recipe(load, Layout.checked(shape, chunks), _checked_dtype(dtype))
        self._init(_engine(recipe, client, retries), _precision_for(recipe.dtype))

    @classmethod
    def from_array(cls, array: Any, client: Any = None, *, retries: int = 3) -> Distributed:
        """Return the operator of a Dask array, whose blocks the workers compute and keep.

        Parameters
        ----------
        array : dask.array.Array of shape (N, D)
            Blocks of both rows and columns are joined: to columns where N < D, else to rows.
        client, retries
            As for the class.

        Examples
        --------
        >>> import dask.array, numpy as np
        >>> Distributed.from_array(dask.array.ones((4, 6), chunks=(2, 3))) @ np.ones(6)
        array([6., 6., 6., 6.])
        """
        if array.ndim != 2 or min(array.shape) < 1:
            raise ValueError(f"Phi must be a matrix with rows and columns, got shape {array.shape}")
        if any(np.isnan(size) for sizes in array.chunks for size in sizes):
            raise ValueError("Phi has chunks of unknown sizes; call its compute_chunk_sizes() first")
        if array.numblocks[0] > 1 and array.numblocks[1] > 1:
            array = array.rechunk({0: -1} if array.shape[0] < array.shape[1] else {1: -1})
        layout = Layout.checked(array.shape, array.chunks)
        blocks = array.to_delayed().reshape(-1).tolist()
        recipe = BlockRecipe(blocks, layout, _checked_dtype(array.dtype))
        found: Distributed = cls.__new__(cls)
        found._init(_engine(recipe, client, retries), _precision_for(recipe.dtype))
        return found

    @classmethod
    def from_npy(cls, path: Any, client: Any = None, *, chunks: Any = None, retries: int = 3) -> Distributed:
        """Return the operator of a matrix in an ``.npy`` file that all workers can read.

        Parameters
        ----------
        path : path
            The file, of shape (N, D). Each worker reads its chunks alone.
        client, chunks, retries
            As for the class; by default chunks of 32 to 64 MiB, of columns where N < D, else of rows.

        Examples
        --------
        >>> import numpy as np, os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "Phi.npy")
        >>> np.save(path, np.arange(6.0).reshape(2, 3))
        >>> Distributed.from_npy(path) @ np.ones(3)
        array([ 3., 12.])
        """
        name = os.path.abspath(path)
        try:
            array = np.load(name, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise ValueError(f"{name}: not a matrix in an .npy file ({error})") from error
        if not isinstance(array, np.ndarray) or array.ndim != 2 or min(array.shape) < 1:
            raise ValueError(f"{name}: must hold a matrix, got shape {getattr(array, 'shape', None)}")
        layout = Layout.checked(array.shape, _chunks_for(array) if chunks is None else chunks)
        load = NpyChunks(name, layout)
        whole = (layout.sizes, -1) if layout.axis == 0 else (-1, layout.sizes)
        return cls(load, layout.shape, whole, client, dtype=array.dtype, retries=retries)

    def _init(self, engine: Engine, precision: str, squares: bool = False) -> None:
        recipe = engine.recipe
        is_complex = recipe.dtype.kind == "c" and not squares
        super().__init__(recipe.layout.shape, is_complex=is_complex, precision=precision)
        self._engine, self._squares = engine, squares
        self._kept: dict[int, np.ndarray] = {}

    def _like_this(self, precision: str, squares: bool = False) -> Distributed:
        """Return another view of the same chunks."""
        found = Distributed.__new__(Distributed)
        found._init(self._engine, precision, squares)
        return found

    @property
    def traffic(self) -> Traffic:
        """What was sent to workers and received since the chunks were named.

        Examples
        --------
        >>> import numpy as np
        >>> Phi = Distributed(lambda i: np.eye(2), shape=(2, 4), chunks=(2, 2))
        >>> y = Phi @ np.ones(4)
        >>> Phi.traffic.loaded
        2
        """
        return self._engine.traffic

    @property
    def _cut(self) -> Layout:
        return self._engine.recipe.layout

    def _layout(self) -> str:
        return self._cut.describe_all()

    # --- products ---------------------------------------------------------------------------------------

    def _forward(self, x: Array) -> Array:
        require_numpy(x, str(self))
        if self._cut.axis == 0:
            return self._joined("forward", self._as_input(x), self._result_type(x))
        return self._sum("forward", None, self._pieces(self._as_input(x)), self._result_type(x))

    def _adjoint(self, y: Array) -> Array:
        require_numpy(y, str(self))
        if self._cut.axis == 1:
            return self._joined("adjoint", self._as_input(y), self._result_type(y))
        return self._sum("adjoint", None, self._pieces(self._as_input(y)), self._result_type(y))

    def _gram(self, x: Array) -> Array:
        require_numpy(x, str(self))
        if self._cut.axis == 1:
            return self._adjoint(self._forward(x))
        return self._sum("gram", self._as_input(x), None, self._result_type(x))

    def _dual_gram(self, v: Array, weights: Array | None) -> Array:
        if self._cut.axis == 0:
            return super()._dual_gram(v, weights)
        require_numpy(v, str(self))
        own = None if weights is None else self._pieces(weights)
        return self._sum("dual_gram", self._as_input(v), own, self._result_type(v))

    @property
    def _fuses_dual(self) -> bool:
        return self._cut.axis == 1

    def _gram_between(self, weights: Weights) -> FusedGram | None:
        # Phi^H W Phi: `weights` of the data, which whoever stands before Phi has.
        return _WeightedGram(self, weights) if self._cut.axis == 0 else None

    def _result_type(self, x: np.ndarray) -> np.dtype:
        return np.result_type(x.dtype, self.dtype)

    def _as_input(self, x: np.ndarray) -> np.ndarray:
        # A product of single with double precision would convert chunks anew.
        parts = np.result_type(x.real.dtype, np.dtype(self.precision))
        return np.ascontiguousarray(
            x, dtype=np.result_type(parts, np.complex64) if x.dtype.kind == "c" else parts
        )

    def _question(self, name: str, like: Any = None, sums: bool = False) -> Question:
        """Ask in the precision of the vectors, where that is higher."""
        precision = self.precision or "float64"
        if isinstance(like, np.ndarray):
            precision = max(precision, like.real.dtype.name)
        return Question(name, precision, sums, self._squares)

    def _pieces(self, x: np.ndarray) -> Callable[[int], np.ndarray]:
        """Return what cuts a vector, or several, as rows or columns are cut."""
        return lambda k: np.ascontiguousarray(x[..., self._cut.part(k)])

    def _sum(
        self, name: str, common: np.ndarray | None, own: Callable[[int], np.ndarray] | None, dtype: np.dtype
    ) -> np.ndarray:
        question = self._question(name, np.empty(0, dtype), sums=True)
        tree = Tree()
        for nodes in self._engine.ask(question, range(self._cut.count), common, own):
            tree.join(nodes)
        return tree.total(self._cut.count).astype(dtype, copy=False)

    def _joined(self, name: str, common: np.ndarray | None, dtype: np.dtype) -> np.ndarray:
        found = self._each(self._question(name, np.empty(0, dtype)), range(self._cut.count), common)
        pieces = [found[k] for k in range(self._cut.count)]
        return np.concatenate(pieces, axis=-1).astype(dtype, copy=False)

    def _each(
        self,
        question: Question,
        ks: Iterable[int],
        common: Any = None,
        own: Callable[[int], Any] | None = None,
    ) -> dict[int, Any]:
        """Ask chunks, and return the answer of each."""
        found: dict[int, Any] = {}
        for some in self._engine.ask(question, list(ks), common, own):
            found |= some
        return found

    # --- entries ----------------------------------------------------------------------------------------

    def _columns(self, indices: np.ndarray) -> np.ndarray:
        # Some columns are asked for in every step of a fit, and these change little.
        missing = np.array([j for j in dict.fromkeys(indices.tolist()) if j not in self._kept], dtype=np.intp)
        if missing.size:
            found = self._ask_entries("columns", missing, 1)
            if (len(self._kept) + missing.size) * self.shape[0] > WRITTEN_OUT:
                wanted = set(indices.tolist())
                self._kept = {j: column for j, column in self._kept.items() if j in wanted}
            self._kept |= dict(zip(missing.tolist(), found, strict=True))
        out = np.empty((len(indices), self.shape[0]), self.dtype)
        for row, j in zip(out, indices.tolist(), strict=True):
            row[:] = self._kept[j]
        if len(self._kept) * self.shape[0] > WRITTEN_OUT:
            self._kept = {}
        return out

    def _rows(self, indices: np.ndarray) -> np.ndarray:
        return self._ask_entries("rows", indices, 0)

    def _ask_entries(self, name: str, indices: np.ndarray, axis: int) -> np.ndarray:
        """Return columns (axis 1) or rows (axis 0) as rows of an array."""
        question = self._question(name)
        out = np.empty((len(indices), self.shape[1 - axis]), self.dtype)
        if self._cut.axis == axis:  # each is in one chunk, and other chunks are left alone
            places = self._cut.split(indices)
            for k, found in self._each(question, places, own=lambda k: places[k][1]).items():
                out[places[k][0]] = found
        else:
            for k, found in self._each(question, range(self._cut.count), indices).items():
                out[:, self._cut.part(k)] = found
        return out

    def _local_gram(self, indices: np.ndarray) -> np.ndarray:
        n_clusters, width = indices.shape
        if self._cut.axis == 0:
            parts = [
                self._sum("local_gram", indices[some], None, self.dtype)
                for some in blocks(n_clusters, numbers_at_once(width * width))
            ]
            return np.concatenate(parts) if parts else np.empty((0, width, width), self.dtype)
        out = np.empty((n_clusters, width, width), self.dtype)
        owner = np.searchsorted(self._cut.ends, indices, side="right")
        inside = (owner == owner[:, :1]).all(axis=1)
        members = {
            k: np.flatnonzero(inside & (owner[:, 0] == k)) for k in np.unique(owner[inside, 0]).tolist()
        }

        def places(k: int) -> np.ndarray:
            return indices[members[k]] - self._cut.part(k).start

        if members:
            for k, found in self._each(self._question("local_gram"), members, own=places).items():
                out[members[k]] = found
        across = np.flatnonzero(~inside)
        if across.size:  # columns of two chunks meet here
            out[across] = gram_of_columns(self._columns, self.shape[0], indices[across])
        return out

    def column_norms(self) -> np.ndarray:
        """Return the Euclidean norms of the columns, computed where the chunks are; shape (D,), float64.

        Examples
        --------
        >>> import numpy as np
        >>> Distributed(lambda i: np.array([[3.0], [4.0]]), shape=(2, 2), chunks=(2, 1)).column_norms()
        array([5., 5.])
        """
        return self._norms.copy()

    @cached_property
    def _norms(self) -> np.ndarray:
        if self._cut.axis == 0:
            energies = self._sum("energies", None, None, np.dtype(np.float64))
        else:
            energies = self._joined("energies", None, np.dtype(np.float64))
        return np.sqrt(energies)

    @cached_property
    def column_norms_exact(self) -> bool:
        """Whether `column_norms` is exact: not where a chunk is an operator that estimates its own.

        Examples
        --------
        >>> import numpy as np
        >>> Distributed(lambda i: np.eye(2), shape=(2, 4), chunks=(2, 2)).column_norms_exact
        True
        """
        return all(self._each(self._question("exact"), range(self._cut.count)).values())

    @cached_property
    def _entries(self) -> int:
        found = self._each(self._question("stored"), range(self._cut.count)).values()
        return sum(found) if all(found) else 0

    def _stored_entries(self) -> int:
        return self._entries

    @cached_property
    def _largest(self) -> float | None:
        found = self._each(self._question("largest"), range(self._cut.count)).values()
        known = [value for value in found if value is not None]
        return max(known) if len(known) == len(found) else None

    def _largest_entry(self) -> float | None:
        return self._largest

    def _abs2(self) -> Operator | None:
        # Operators other than matrices may have no cheap squares.
        return self._like_this(self.precision or "float64", squares=True) if self._entries else None

    def _in_precision(self, precision: str) -> Operator:
        return self if precision == self.precision else self._like_this(precision, self._squares)

    def _expression(self) -> str:
        return f"Distributed({self.shape[0]}, {self.shape[1]}, {self._cut.describe_all()})"


class _WeightedGram:
    """``Phi^H diag(weights) Phi x`` in one round trip, for chunks of rows."""

    def __init__(self, operator: Distributed, weights: Weights) -> None:
        self.operator, self.weights = operator, weights

    def pays(self, x: Array) -> bool:
        """Tell whether it is faster than one factor after the other: always."""
        return isinstance(x, np.ndarray)

    def __call__(self, x: Array) -> Array:
        """Return the product."""
        operator = self.operator
        dtype = operator._result_type(x)
        given = operator._as_input(x)
        weights = self.weights(given.real.dtype.name).like(given)
        return operator._sum("weighted_gram", given, operator._pieces(conj(weights)), dtype)

    def away(self, x: Array, gain: float, overwrite_x: bool = False) -> Array:
        """Return ``x`` less `gain` times the product."""
        return x - gain * self(x)


@dataclass(frozen=True)
class NpyChunks:
    """Chunks of a matrix in a file.

    Attributes
    ----------
    path : str
        The ``.npy`` file.
    layout : Layout
        How it is cut.
    """

    path: str
    layout: Layout

    def __call__(self, k: int) -> np.ndarray:
        """Read chunk k alone."""
        array = np.load(self.path, mmap_mode="r", allow_pickle=False)
        if array.shape != self.layout.shape:
            raise ValueError(f"{self.path} has shape {array.shape}, it was {self.layout.shape}")
        part = self.layout.part(k)
        return np.array(array[part] if self.layout.axis == 0 else array[:, part])


def _chunks_for(array: np.ndarray) -> tuple[int, int]:
    """Return chunks of 32 to 64 MiB; as many as a power of two, of which sums move least."""
    axis = 1 if array.shape[0] < array.shape[1] else 0
    count = 2 ** math.ceil(math.log2(max(array.nbytes / CHUNK_BYTES, 1)))
    size = -(-array.shape[axis] // count)
    return (size, -1) if axis == 0 else (-1, size)


def _engine(recipe: Recipe, client: Any, retries: int) -> Engine:
    found = active_client() if client is None else client
    if found is None:
        return LocalThreads(recipe)
    if not (hasattr(found, "submit") and hasattr(found, "scheduler_info")):
        raise TypeError(f"client must be a distributed.Client, got {type(found).__name__}")
    if getattr(found, "asynchronous", False):
        raise TypeError("client must not be asynchronous: a fit waits for its products")
    return DaskWorkers(recipe, found, retries)


def _checked_dtype(dtype: Any) -> np.dtype:
    found = np.dtype(dtype)
    if found.kind not in "biufc":
        raise TypeError(f"dtype must be one of numbers, got {found}")
    return found


def _precision_for(dtype: np.dtype) -> str:
    return "float32" if dtype in (np.float32, np.complex64) else "float64"
