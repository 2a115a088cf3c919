"""Operators on top of each other and side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from itertools import chain
from operator import add as plus
from typing import Any

import numpy as np
import scipy.sparse

from cofem._arrays import Array, namespace, take
from cofem.operators.agreed import (
    agreed_groups,
    agreed_shape,
    all_sparse,
    common_device_array,
    common_precision,
)
from cofem.operators.base import Operator
from cofem.operators.boxes import Box, stacked_boxes
from cofem.operators.circulant import CirculantGram
from cofem.operators.entries import like_entries_of
from cofem.operators.facts import Facts
from cofem.operators.filters import FilterBank, stacked

#: Numbers from which on memory counts more than time.
LARGE = 2**17


class Stack(Operator):
    """Two or more operators on top of each other; side by side is the adjoint of a stack of adjoints."""

    def __init__(self, parts: Sequence[Operator]) -> None:
        super().__init__(
            (sum(op.shape[0] for op in parts), parts[0].shape[1]),
            is_complex=any(op.is_complex for op in parts),
            precision=common_precision(parts),
            facts=Facts.of_stack([op.facts for op in parts]),
        )
        self.parts = tuple(parts)

    def _parts(self) -> tuple[Operator, ...]:
        return self.parts

    def _device_array(self) -> Array | None:
        return common_device_array(self.parts)

    def _forward(self, x: Array) -> Array:
        if not isinstance(x, np.ndarray) or x.size < LARGE or self.is_complex or self.precision is not None:
            return namespace(x).concat([op._forward(x) for op in self.parts], axis=-1)
        # One after the other, so that the whole is not in memory twice. Parts without entries keep the type.
        out = np.empty((*x.shape[:-1], self.shape[0]), x.dtype)
        start = 0
        for op in self.parts:
            op._forward_into(x, out[..., start : start + op.shape[0]])
            start += op.shape[0]
        return out

    def _adjoint(self, y: Array) -> Array:
        ends = np.cumsum([op.shape[0] for op in self.parts]).tolist()
        starts = [0, *ends[:-1]]
        pieces = (op._adjoint(y[..., i:j]) for op, i, j in zip(self.parts, starts, ends, strict=True))
        return reduce(plus, pieces)

    def _add_weighted_product(self, x: Array, weights: Array, factor: float, out: Array) -> None:
        start = 0
        for op in self.parts:
            op._add_weighted_product(x, weights[start : start + op.shape[0]], factor, out)
            start += op.shape[0]

    def _gram(self, x: Array) -> Array:
        return reduce(plus, (op._gram(x) for op in self.parts))

    def _local_gram(self, indices: np.ndarray) -> Array:
        return reduce(plus, (like_entries_of(self, op._local_gram(indices)) for op in self.parts))

    def _circulant_gram(self) -> CirculantGram | None:
        first, *others = (op.circulant_gram() for op in self.parts)
        for other in others:
            first = None if first is None or other is None else first.plus(other)
        return first

    def _filter_bank(self) -> FilterBank | None:
        return stacked([op.filter_bank() for op in self.parts])

    def _columns(self, indices: np.ndarray) -> Array:
        pieces = [like_entries_of(self, op._columns(indices)) for op in self.parts]
        return namespace(pieces[0]).concat(pieces, axis=-1)

    def _rows(self, indices: np.ndarray) -> Array:
        ends = np.cumsum([op.shape[0] for op in self.parts])
        owner = np.searchsorted(ends, indices, side="right")
        pieces = []
        for k in np.unique(owner):
            local = indices[owner == k] - (ends[k] - self.parts[k].shape[0])
            pieces.append(like_entries_of(self, self.parts[k]._rows(local)))
        # The pieces are in the order of the parts.
        order = np.argsort(np.argsort(owner, kind="stable"))
        return take(namespace(pieces[0]).concat(pieces), order, axis=0)

    def _abs2(self) -> Operator | None:
        squares = [op.abs2() for op in self.parts]
        known = [square for square in squares if square is not None]
        return Stack(known) if len(known) == len(squares) else None

    def _in_precision(self, precision: str) -> Operator:
        return Stack([op._in_precision(precision) for op in self.parts])

    def _adjoint_norm_resolution(self, norms: Array) -> Array:
        ends = np.cumsum([op.shape[0] for op in self.parts]).tolist()
        xp, pieces = namespace(norms), []
        for op, i, j in zip(self.parts, [0, *ends[:-1]], ends, strict=True):
            part = norms[i:j]
            pieces.append(xp.zeros_like(part) + op._adjoint_norm_resolution(part))
        return xp.concat(pieces)

    def _column_groups(self) -> np.ndarray | None:
        return agreed_groups([op.groups for op in self.parts])

    def _row_groups(self) -> np.ndarray | None:
        if all(op.row_groups is None for op in self.parts):
            return None
        labels: list[np.ndarray] = []
        offset = 0
        for op in self.parts:
            part = np.zeros(op.shape[0], dtype=np.intp) if op.row_groups is None else op.row_groups
            labels.append(part + offset)
            offset = int(labels[-1].max()) + 1
        return np.concatenate(labels)

    def _column_shape(self) -> tuple[int, ...] | None:
        return agreed_shape([op.column_shape for op in self.parts])

    def _row_places(self) -> np.ndarray | None:
        places = [op.row_places for op in self.parts]
        known = [part for part in places if part is not None]
        return np.concatenate(known) if len(known) == len(places) else None

    def _row_parts(self) -> list[Operator]:
        return [part for op in self.parts for part in op._row_parts()]

    def _row_boxes(self) -> tuple[Box, ...] | None:
        if agreed_shape([op.column_shape for op in self.parts]) is None:
            return None
        return stacked_boxes([op.row_boxes for op in self.parts], [op.shape[0] for op in self.parts])

    def _band_symbols(self, basis: str) -> np.ndarray | None:
        symbols = [op.band_symbols(basis) for op in self.parts]
        known = [part for part in symbols if part is not None]
        agree = len(known) == len(symbols) and len({part.shape[1:] for part in known}) == 1
        return np.concatenate(known) if agree else None

    def _each_band_symbol(self, basis: str) -> Iterator[np.ndarray]:
        return chain.from_iterable(op._each_band_symbol(basis) for op in self.parts)

    def _sparse_matrix(self) -> scipy.sparse.csr_array | None:
        known = all_sparse(self.parts)
        return None if known is None else scipy.sparse.csr_array(scipy.sparse.vstack(known, format="csr"))

    def _repeated(self, count: int) -> Operator | None:
        found = [op._repeated(count) for op in self.parts]
        known = [op for op in found if op is not None]
        return Stack(known) if len(known) == len(found) else None

    def _add_weighted_gram(self, weights: np.ndarray, above: dict[int, np.ndarray]) -> bool:
        ends = np.cumsum([op.shape[0] for op in self.parts]).tolist()
        pieces = zip(self.parts, [0, *ends[:-1]], ends, strict=True)
        return all(op._add_weighted_gram(weights[i:j], above) for op, i, j in pieces)

    def _expression(self) -> str:
        return f"vstack([{', '.join(op._expression() for op in self.parts)}])"

    def _adjoint_expression(self) -> str:
        return f"hstack([{', '.join(op.H._expression() for op in self.parts)}])"


def vstack(operators: Sequence[Operator]) -> Operator:
    """Stack operators on top of each other: one set of coefficients, several sets of data.

    Parameters
    ----------
    operators : sequence of Operator
        Of shapes ``(N_k, D)``.

    Returns
    -------
    Operator
        Of shape ``(sum of N_k, D)``.

    Examples
    --------
    >>> from cofem.operators import DCT, Identity, vstack
    >>> Phi = vstack([Identity(4), DCT(4)])
    >>> Phi
    <vstack([Identity(4), DCT(4)]), shape (8, 4)>
    >>> Phi.facts.column_gram
    2.0
    """
    _check_parts(operators, axis=1)
    return operators[0] if len(operators) == 1 else Stack(operators)


def hstack(operators: Sequence[Operator]) -> Operator:
    """Put operators side by side: one dictionary made of several, coefficients in the same order.

    Parameters
    ----------
    operators : sequence of Operator
        Of shapes ``(N, D_k)``.

    Returns
    -------
    Operator
        Of shape ``(N, sum of D_k)``.

    Examples
    --------
    >>> from cofem.operators import DCT, Identity, hstack
    >>> Phi = hstack([Identity(4), DCT(4).T])
    >>> Phi
    <hstack([Identity(4), DCT(4).T]), shape (4, 8)>
    >>> Phi.facts.row_gram
    2.0
    """
    _check_parts(operators, axis=0)
    return operators[0] if len(operators) == 1 else Stack([op.H for op in operators]).H


class BlockDiagonal(Operator):
    """Operators that each act on coefficients of their own."""

    def __init__(self, parts: Sequence[Operator]) -> None:
        grams = {op.facts.row_gram for op in parts}
        super().__init__(
            (sum(op.shape[0] for op in parts), sum(op.shape[1] for op in parts)),
            is_complex=any(op.is_complex for op in parts),
            precision=common_precision(parts),
            facts=Facts(
                row_gram=grams.pop() if len(grams) == 1 else None,
                one_per_row=all(op.facts.one_per_row for op in parts),
            ),
        )
        self.parts = tuple(parts)

    def _parts(self) -> tuple[Operator, ...]:
        return self.parts

    def _device_array(self) -> Array | None:
        return common_device_array(self.parts)

    def _apply(self, name: str, x: Array, axis: int) -> Array:
        first = self.parts[0]
        if all(op is first for op in self.parts):  # as one batch
            xp = namespace(x)
            parts = xp.reshape(x, (*x.shape[:-1], len(self.parts), first.shape[axis]))
            found = getattr(first, name)(parts)
            return xp.reshape(found, (*x.shape[:-1], len(self.parts) * found.shape[-1]))
        ends = np.cumsum([op.shape[axis] for op in self.parts]).tolist()
        starts = [0, *ends[:-1]]
        pieces = [getattr(op, name)(x[..., i:j]) for op, i, j in zip(self.parts, starts, ends, strict=True)]
        xp = namespace(x)
        dtype = xp.result_type(*pieces)
        return xp.concat([xp.astype(piece, dtype, copy=False) for piece in pieces], axis=-1)

    def _forward(self, x: Array) -> Array:
        return self._apply("_forward", x, 1)

    def _adjoint(self, y: Array) -> Array:
        return self._apply("_adjoint", y, 0)

    def _gram(self, x: Array) -> Array:
        return self._apply("_gram", x, 1)

    def _copied(self) -> Operator | None:
        first = self.parts[0]
        return first if all(op is first for op in self.parts) else None

    def _abs2(self) -> Operator | None:
        known = [square for square in self._once(lambda op: op.abs2()) if square is not None]
        return BlockDiagonal(known) if len(known) == len(self.parts) else None

    def _once(self, answer: Callable[[Operator], Any]) -> list[Any]:
        """Return what each part answers, the same object for parts that are one object."""
        answers = {id(op): answer(op) for op in self.parts}
        return [answers[id(op)] for op in self.parts]

    def _sparse_matrix(self) -> scipy.sparse.csr_array | None:
        known = all_sparse(self.parts)
        return None if known is None else scipy.sparse.csr_array(scipy.sparse.block_diag(known, format="csr"))

    def _row_groups(self) -> np.ndarray | None:
        first = self._copied()
        if first is None or first.row_groups is None:
            return None
        return np.tile(first.row_groups, len(self.parts))

    def _spectral_norm(self) -> float:
        return max(op.norm for op in self.parts)

    def _in_precision(self, precision: str) -> Operator:
        return BlockDiagonal(self._once(lambda op: op._in_precision(precision)))

    def _expression(self) -> str:
        if all(op is self.parts[0] for op in self.parts):
            return f"block_diag([{self.parts[0]._expression()}] * {len(self.parts)})"
        return f"block_diag([{', '.join(op._expression() for op in self.parts)}])"


def block_diag(operators: Sequence[Operator]) -> Operator:
    """Put operators along the diagonal: each has coefficients and data of its own.

    Parameters
    ----------
    operators : sequence of Operator
        Of shapes ``(N_k, D_k)``. Where all are one object, ``[F] * C``, it takes them as one batch.

    Returns
    -------
    Operator
        Of shape ``(sum of N_k, sum of D_k)``.

    Examples
    --------
    >>> from cofem.operators import DCT, Identity, block_diag
    >>> block_diag([Identity(4), DCT(2)])
    <block_diag([Identity(4), DCT(2)]), shape (6, 6)>
    """
    if len(operators) == 0 or not all(isinstance(op, Operator) for op in operators):
        kinds = [type(op).__name__ for op in operators]
        raise TypeError(f"operators must be a non-empty sequence of operators, got {kinds}; see as_operator")
    return operators[0] if len(operators) == 1 else BlockDiagonal(operators)


def repeated(operator: Operator, count: int) -> Operator:
    """Return an operator that acts on each of `count` arrays, one after the other in a vector.

    Differences and frames, and stacks of them, keep the order of their bands: rows of a band are those of the
    first array, then those of the second. For other operators all rows of an array come before the next.

    Examples
    --------
    >>> from cofem.operators import DCT, Gradient
    >>> repeated(Gradient((4, 4)), 3)
    <Gradient((3, 4, 4), axes=(1, 2)), shape (72, 48)>
    >>> repeated(DCT(4), 2)
    <block_diag([DCT(4)] * 2), shape (8, 8)>
    """
    found = operator._repeated(count)
    return block_diag([operator] * count) if found is None else found


def _check_parts(operators: Sequence[Operator], axis: int) -> None:
    if len(operators) == 0 or not all(isinstance(op, Operator) for op in operators):
        kinds = [type(op).__name__ for op in operators]
        raise TypeError(f"operators must be a non-empty sequence of operators, got {kinds}; see as_operator")
    if len({op.shape[axis] for op in operators}) > 1:
        shapes = [op.shape for op in operators]
        raise ValueError(
            f"operators must agree in the number of {('rows', 'columns')[axis]}, got shapes {shapes}"
        )
