"""What chunks of a dictionary are asked, and how sums over them are put together.

A sum over chunks is a tree that the number of chunks alone decides: chunks 0 and 1 are added, 2 and 3, then
these two sums, and so on, in double precision. Whoever holds all chunks below a node may add them up; the
rest is added where the sums come together. So the bits of a product do not depend on who holds which chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from cofem._blocks import BATCH_NUMBERS, vectors_at_once
from cofem.operators.base import Operator
from cofem.operators.chunks import Chunk, ChunkError
from cofem.operators.same_bits import aligned, one_blas_thread

#: A node of the tree of sums: its level (0 for a chunk) and its place in the level.
Node = tuple[int, int]


@dataclass(frozen=True)
class Question:
    """What chunks are asked, all of those in one place at once.

    Attributes
    ----------
    name : str
        One of the functions below.
    precision : str
        What is computed in.
    sums : bool
        Whether answers are added up over chunks.
    squares : bool
        Whether it is asked of the squared moduli of the entries.
    """

    name: str
    precision: str
    sums: bool = False
    squares: bool = False

    def __call__(self, chunks: Sequence[Chunk], ks: Sequence[int], common: Any, own: Any) -> dict[Any, Any]:
        """Return the answers by chunk, or the sums that can be made of them by node.

        Parameters
        ----------
        chunks : sequence of Chunk
            The chunks.
        ks : sequence of int
            Their numbers.
        common : Any
            What all chunks are given.
        own : sequence or None
            What each of them is given.
        """
        answer = _ANSWERS[self.name]
        common, own = aligned(common), None if own is None else [aligned(each) for each in own]
        tree = Tree()
        found: dict[Any, Any] = {}
        with one_blas_thread():
            for i, (k, chunk) in enumerate(zip(ks, chunks, strict=True)):
                operator = chunk.operator(self.precision)
                if self.squares:
                    squared = operator.abs2()
                    if squared is None:
                        raise ChunkError(f"chunk {k} has no squares of its entries: {operator!r}")
                    operator = squared
                value = answer(operator, common, None if own is None else own[i])
                if self.sums:
                    tree.add(k, value)
                else:
                    found[k] = value
        return dict(tree.nodes) if self.sums else found


def _fused_dual(operator: Operator, v: Any, g: Any) -> Any:
    return operator.dual_gram(v, g)


def _weighted_gram(operator: Operator, x: Any, weights: Any) -> Any:
    image = operator.forward(x)
    image *= weights.astype(image.real.dtype, copy=False)
    return operator.adjoint(image)


def _local_gram(operator: Operator, clusters: Any, own: Any) -> Any:
    return operator.local_gram(clusters if own is None else own)


def _energies(operator: Operator, common: Any, own: Any) -> np.ndarray:
    norms = np.asarray(operator.column_norms(), dtype=np.float64)
    return norms * norms


#: By name, what becomes of an operator, of what all are given and of what each is given.
_ANSWERS: Mapping[str, Callable[[Operator, Any, Any], Any]] = {
    "forward": lambda op, x, own: op.forward(x if own is None else own),
    "adjoint": lambda op, y, own: op.adjoint(y if own is None else own),
    "gram": lambda op, x, own: op.gram(x),
    "weighted_gram": _weighted_gram,
    "dual_gram": _fused_dual,
    "columns": lambda op, common, own: op.columns(common if own is None else own),
    "rows": lambda op, common, own: op.rows(common if own is None else own),
    "local_gram": _local_gram,
    "energies": _energies,
    "largest": lambda op, common, own: op.largest_entry(),
    "exact": lambda op, common, own: op.column_norms_exact,
    "stored": lambda op, common, own: op.stored_entries,
}


class Tree:
    """A sum over chunks, added in an order that their numbers alone decide.

    Examples
    --------
    >>> import numpy as np
    >>> first, second, both = Tree(), Tree(), Tree()
    >>> for k in (0, 1, 4):
    ...     first.add(k, np.full(1, 10.0**k))
    >>> for k in (2, 3):
    ...     second.add(k, np.full(1, 10.0**k))
    >>> sorted(first.nodes), sorted(second.nodes)
    ([(0, 4), (1, 0)], [(1, 1)])
    >>> for nodes in (first.nodes, second.nodes):
    ...     both.join(nodes)
    >>> both.total(5).tolist()
    [11111.0]
    """

    def __init__(self) -> None:
        self.nodes: dict[Node, np.ndarray] = {}

    def add(self, k: int, value: np.ndarray) -> None:
        """Add the value of chunk k, in double precision."""
        self._put((0, k), value.astype(np.complex128 if value.dtype.kind == "c" else np.float64, copy=False))

    def join(self, nodes: Mapping[Node, np.ndarray]) -> None:
        """Add sums that were made elsewhere."""
        for node, value in nodes.items():
            self._put(node, value)

    def _put(self, node: Node, value: np.ndarray) -> None:
        while True:
            level, place = node
            other = self.nodes.pop((level, place ^ 1), None)
            if other is None:
                self.nodes[node] = value
                return
            value = value + other  # of two numbers, the order makes no difference
            node = (level + 1, place // 2)

    def total(self, count: int) -> np.ndarray:
        """Return the sum over all of so many chunks; what is left without a neighbour goes up by itself."""
        left = sorted(self.nodes.items(), key=lambda item: item[0][1] << item[0][0], reverse=True)
        assert sum(min(count, (place + 1) << level) - (place << level) for (level, place), _ in left) == count
        return reduce(lambda after, value: value + after, (value for _, value in left))


def numbers_at_once(width: int) -> int:
    """Return how many clusters of so many columns are asked for at a time.

    Examples
    --------
    >>> numbers_at_once(2**11)
    2048
    """
    return vectors_at_once(width, BATCH_NUMBERS)
