"""Operators made of operators: products, sums and multiples; `adjoints` has adjoints and conjugates.

Functions build, classes hold: `compose`, `add` and `scale` check shapes and simplify, so that the classes
need not.
"""

from __future__ import annotations

import cmath
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, reduce
from itertools import pairwise
from operator import add as plus
from operator import matmul
from typing import TYPE_CHECKING

import numpy as np

from cofem._arrays import Array, conj, namespace, on_device_of, take, to_numpy
from cofem.operators.action import FusedGram
from cofem.operators.adjoints import SameAxes
from cofem.operators.agreed import (
    agreed_groups,
    agreed_shape,
    all_sparse,
    common_device_array,
    common_precision,
    mean_square,
)
from cofem.operators.base import Operator
from cofem.operators.circulant import CirculantGram
from cofem.operators.decay import Decay
from cofem.operators.entries import StoredMatrix, diagonal_moduli, like_entries_of, to_device_of
from cofem.operators.facts import Facts
from cofem.operators.filters import BlockCirculantGram, FilterBank
from cofem.operators.spectral_atoms import SpectralAtoms, atoms_of_product, scaled_atoms

if TYPE_CHECKING:
    import scipy.sparse


class Scaled(SameAxes):
    """Scalar multiple of an operator."""

    _binding = 2

    def __init__(self, scalar: float | complex, operator: Operator) -> None:
        super().__init__(
            operator.shape,
            is_complex=operator.is_complex or isinstance(scalar, complex),
            precision=operator.precision,
            facts=operator.facts.of_multiple(scalar),
        )
        self.scalar = scalar
        self.operator = operator

    def _forward(self, x: Array) -> Array:
        return self.scalar * self.operator._forward(x)

    def _adjoint(self, y: Array) -> Array:
        return self.scalar.conjugate() * self.operator._adjoint(y)

    def _columns(self, indices: np.ndarray) -> Array:
        return self.scalar * self.operator._columns(indices)

    def _rows(self, indices: np.ndarray) -> Array:
        return self.scalar * self.operator._rows(indices)

    def _take_rows(self, indices: np.ndarray) -> Operator:
        return scale(self.scalar, self.operator._take_rows(indices))

    def _local_gram(self, indices: np.ndarray) -> Array:
        # Complex for a complex scalar, as in `_gram`.
        return (self.scalar.conjugate() * self.scalar) * self.operator._local_gram(indices)

    def _circulant_gram(self) -> CirculantGram | None:
        known = self.operator.circulant_gram()
        return None if known is None else known.times(abs(self.scalar) ** 2)

    def _decay(self) -> Decay | None:
        known = self.operator._decay()
        return None if known is None else known._replace(seen=abs(self.scalar) ** 2 * known.seen)

    def _circulant_between(self, circulant: CirculantGram) -> CirculantGram | None:
        known = self.operator._circulant_between(circulant)
        return None if known is None else known.times(abs(self.scalar) ** 2)

    def _filter_bank(self) -> FilterBank | None:
        bank = self.operator.filter_bank()
        return None if bank is None else bank.times(self.scalar)

    def _offset_gram(self, offsets: np.ndarray, weights: np.ndarray) -> np.ndarray | None:
        return self.operator._offset_gram(offsets, abs(self.scalar) ** 2 * weights)

    def _block_circulant_gram(self) -> BlockCirculantGram | None:
        known = self.operator.block_circulant_gram()
        return None if known is None else known.times(abs(self.scalar) ** 2)

    def _spectral_atoms(self) -> SpectralAtoms | None:
        return scaled_atoms(self.operator.spectral_atoms(), self.scalar)

    def _sparse_matrix(self) -> scipy.sparse.csr_array | None:
        matrix = self.operator.sparse_matrix()
        return None if matrix is None else self.scalar * matrix

    def _add_weighted_gram(self, weights: np.ndarray, above: dict[int, np.ndarray]) -> bool:
        return self.operator._add_weighted_gram(weights * weights.dtype.type(abs(self.scalar) ** 2), above)

    def _add_weighted_product(self, x: Array, weights: Array, factor: float, out: Array) -> None:
        self.operator._add_weighted_product(x, weights, abs(self.scalar) ** 2 * factor, out)

    def _row_parts(self) -> list[Operator]:
        return [self.scalar * part for part in self.operator._row_parts()]

    def _band_symbols(self, basis: str) -> np.ndarray | None:
        symbols = self.operator.band_symbols(basis)
        return None if symbols is None else abs(self.scalar) ** 2 * symbols

    def _each_band_symbol(self, basis: str) -> Iterator[np.ndarray]:
        return (abs(self.scalar) ** 2 * symbol for symbol in self.operator._each_band_symbol(basis))

    def _stored_matrix(self) -> StoredMatrix | None:
        stored = self.operator.stored_matrix()
        return None if stored is None else StoredMatrix(stored.array, self.scalar * stored.factor)

    def _dual_gram(self, v: Array, weights: Array | None) -> Array:
        if not self._fuses_dual:
            return super()._dual_gram(v, weights)
        return (self.scalar.conjugate() * self.scalar) * self.operator._dual_gram(v, weights)

    @property
    def _fuses_dual(self) -> bool:
        return self.operator._fuses_dual

    def _gram(self, x: Array) -> Array:
        # A complex scalar times its conjugate stays of complex type, as the result must.
        return (self.scalar.conjugate() * self.scalar) * self.operator._gram(x)

    def _gradient_step(self, x: Array, gain: float, shift: Array | None, overwrite_x: bool) -> Array:
        if isinstance(self.scalar, complex):  # its result must be of complex type
            return super()._gradient_step(x, gain, shift, overwrite_x)
        return self.operator._gradient_step(x, self.scalar**2 * gain, shift, overwrite_x)

    def _spectral_norm(self) -> float:
        return abs(self.scalar) * self.operator.norm

    def _abs2(self) -> Operator | None:
        squares = self.operator.abs2()
        return None if squares is None else abs(self.scalar) ** 2 * squares

    def _norm_resolution(self, norms: Array) -> Array | float:
        factor = abs(self.scalar)
        return factor * self.operator._norm_resolution(norms / factor) if factor else 0.0

    def _in_precision(self, precision: str) -> Operator:
        return Scaled(self.scalar, self.operator._in_precision(precision))

    def _expression(self) -> str:
        text = self.operator._bracketed(2)
        if self.scalar == -1:
            return f"-{text}"
        number = f"({self.scalar:g})" if isinstance(self.scalar, complex) else f"{self.scalar:g}"
        return f"{number} * {text}"


class Product(Operator):
    """Product of two or more operators, the last one applied first."""

    _binding = 2

    def __init__(self, factors: Sequence[Operator]) -> None:
        super().__init__(
            (factors[0].shape[0], factors[-1].shape[1]),
            is_complex=any(op.is_complex for op in factors),
            precision=common_precision(factors),
            facts=Facts.of_product([op.facts for op in factors]),
        )
        self.factors = tuple(factors)

    def _parts(self) -> tuple[Operator, ...]:
        return self.factors

    def _device_array(self) -> Array | None:
        return common_device_array(self.factors)

    @cached_property
    def _fused_gram(self) -> FusedGram | None:
        """A faster way to the Gram operator than one factor after the other."""
        if len(self.factors) != 2:
            return None
        weights = self.factors[0]._gram_diagonal()
        return None if weights is None else self.factors[1]._gram_between(weights)

    def _forward(self, x: Array) -> Array:
        x = self.factors[-1]._forward(x)
        for factor in self.factors[-2::-1]:
            x = factor._forward_overwriting(x)
        return x

    def _adjoint(self, y: Array) -> Array:
        y = self.factors[0]._adjoint(y)
        for factor in self.factors[1:]:
            y = factor._adjoint_overwriting(y)
        return y

    def _gram(self, x: Array) -> Array:
        if self._fused_gram is not None and self._fused_gram.pays(x):
            return self._fused_gram(x)
        # The Gram operator of the first factor sits in the middle and may be cheaper than its two halves.
        x = self.factors[-1]._forward(x)
        for factor in self.factors[-2:0:-1]:
            x = factor._forward_overwriting(x)
        x = self.factors[0]._gram(x)
        for factor in self.factors[1:]:
            x = factor._adjoint_overwriting(x)
        return x

    def _gradient_step(self, x: Array, gain: float, shift: Array | None, overwrite_x: bool) -> Array:
        if self._fused_gram is None or not self._fused_gram.pays(x):
            return super()._gradient_step(x, gain, shift, overwrite_x)
        out = self._fused_gram.away(x, gain, overwrite_x)
        if shift is not None:
            out += shift
        return out

    def _dual_gram(self, v: Array, weights: Array | None) -> Array:
        if not self._fuses_dual:
            return super()._dual_gram(v, weights)
        *left, inner = self.factors
        if inner.facts.diagonal:  # its squares are weights, too
            moduli = on_device_of(v, to_numpy(diagonal_moduli(inner))) ** 2
            weights = moduli if weights is None else weights * moduli
            *left, inner = left
        for factor in left:
            v = factor._adjoint(v)
        v = inner._dual_gram(v, weights)
        for factor in left[::-1]:
            v = factor._forward_overwriting(v)
        return v

    @property
    def _fuses_dual(self) -> bool:
        *left, last = self.factors
        return (left[-1] if last.facts.diagonal else last)._fuses_dual

    def _spectral_norm(self) -> float:
        first, last = self.factors[0], self.factors[-1]
        if last.facts.row_gram is not None:  # |A B|^2 = |A B B^H A^H| = c |A|^2
            return float(np.sqrt(last.facts.row_gram)) * compose(*self.factors[:-1]).norm
        if first.facts.column_gram is not None:
            return float(np.sqrt(first.facts.column_gram)) * compose(*self.factors[1:]).norm
        return super()._spectral_norm()

    def _abs2(self) -> Operator | None:
        # The square of a sum of products is the sum of their squares only where the sum has one term.
        if self.factors[0].facts.one_per_row:
            parts = [self.factors[0], compose(*self.factors[1:])]
        elif self.factors[-1].facts.one_per_column:
            parts = [compose(*self.factors[:-1]), self.factors[-1]]
        else:
            return None
        squares = [part.abs2() for part in parts]
        known = [square for square in squares if square is not None]
        return compose(*known) if len(known) == 2 else None

    def _norm_resolution(self, norms: Array) -> Array | float:
        *left, last = self.factors
        if not last.facts.diagonal:
            return super()._norm_resolution(norms)
        scale = diagonal_moduli(last)
        xp = namespace(norms)
        scale = on_device_of(norms, scale) if isinstance(scale, np.ndarray) else scale
        before = norms / xp.where(scale > 0, scale, xp.ones_like(scale))
        return scale * compose(*left)._norm_resolution(before)

    def _in_precision(self, precision: str) -> Operator:
        return Product([op._in_precision(precision) for op in self.factors])

    def _column_groups(self) -> np.ndarray | None:
        # A diagonal factor leaves each coefficient in its place.
        named = [op for op in self.factors if not op.facts.diagonal]
        return named[-1].groups if named else None

    def _row_groups(self) -> np.ndarray | None:
        named = [op for op in self.factors if not op.facts.diagonal]
        return named[0].row_groups if named else None

    def _column_shape(self) -> tuple[int, ...] | None:
        named = [op for op in self.factors if not op.facts.diagonal]
        return (named or self.factors)[-1].column_shape

    def _row_places(self) -> np.ndarray | None:
        named = [op for op in self.factors if not op.facts.diagonal]
        return (named or self.factors)[0].row_places if len(named) <= 1 else None

    def _sparse_matrix(self) -> scipy.sparse.csr_array | None:
        known = all_sparse(self.factors)
        return None if known is None else reduce(matmul, known)

    def _columns(self, indices: np.ndarray) -> Array:
        if not self.stored_entries:
            return super()._columns(indices)
        *left, last = self.factors
        if last.facts.diagonal:
            ones = to_device_of(self, np.ones(last.shape[1], dtype=self.dtype))
            return compose(*left)._columns(indices) * take(last._forward(ones), indices, axis=0)[:, None]
        return compose(*left)._forward(last._columns(indices))

    def _take_rows(self, indices: np.ndarray) -> Operator:
        picked = self.factors[0]._picked_again(indices)
        return super()._take_rows(indices) if picked is None else compose(picked, *self.factors[1:])

    def _local_gram(self, indices: np.ndarray) -> Array:
        first, *rest = self.factors
        *left, last = self.factors
        if self.facts.column_gram is None and first.facts.column_gram is not None:
            return first.facts.column_gram * like_entries_of(self, compose(*rest)._local_gram(indices))
        if self.facts.column_gram is None and last.facts.diagonal:
            ones = to_device_of(self, np.ones(last.shape[1], dtype=self.dtype))
            scale = take(last._forward(ones), indices.reshape(-1), axis=0)
            scale = namespace(scale).reshape(scale, indices.shape)
            gram = like_entries_of(self, compose(*left)._local_gram(indices))
            return conj(scale)[:, :, None] * gram * scale[:, None, :]
        return super()._local_gram(indices)

    def _circulant_gram(self) -> CirculantGram | None:
        first, *rest = self.factors
        # Samples of a signal, or weights of it, keep a share of each column's energy; so do orthonormal
        # columns.
        if first.facts.one_per_row or first.facts.column_gram is not None:
            known, share = compose(*rest).circulant_gram(), first.facts.column_gram
            if known is None:
                return None
            return known.times(mean_square(first), is_exact=False) if share is None else known.times(share)
        found = first.circulant_gram()
        for factor in rest:
            found = None if found is None else factor._circulant_between(found)
        return super()._circulant_gram() if found is None else found

    def _decay(self) -> Decay | None:
        *left, last = self.factors
        # Samples and weights, one after the other, of all of which a sample keeps a share.
        count = next((i for i, factor in enumerate(left) if not factor.facts.one_per_row), len(left))
        if count:
            rest = self.factors[count:]
            known = None if _picks(rest) else compose(*rest)._decay()
            if known is None:
                return None
            weights = to_numpy(compose(*self.factors[:count]).column_norms()).astype(np.float64) ** 2
            return known._replace(seen=known.seen * weights)
        known = compose(*left)._decay() if last.facts.diagonal else None
        if known is None or known.scale is not None:
            return None
        scale = to_numpy(last.column_norms()).astype(np.float64)
        return known._replace(scale=scale) if (scale > 0).all() and not last.is_complex else None

    def _nearest_circulant(self) -> CirculantGram | None:
        first, *rest = self.factors
        inner = compose(*rest)
        if first.facts.one_per_row:
            grid = inner._fourier_grid()
            if grid is not None:
                weights = to_numpy(first.column_norms()).astype(np.float64).reshape(grid) ** 2
                return CirculantGram(grid, weights, is_real=False)
            known = inner.nearest_circulant()
            return None if known is None else known.times(mean_square(first), is_exact=False)
        copied = first._copied()
        found = None if copied is None or len(rest) > 1 else rest[0]._nearest_of_views(copied)
        return super()._nearest_circulant() if found is None else found

    def _filter_bank(self) -> FilterBank | None:
        found = self.factors[0].filter_bank()
        for factor in self.factors[1:]:
            bank = None if found is None else factor.filter_bank()
            found = None if found is None or bank is None else found.after(bank)
        return found

    def _block_circulant_gram(self) -> BlockCirculantGram | None:
        known = super()._block_circulant_gram()
        first, *rest = self.factors
        # As for one array.
        if known is None and (first.facts.one_per_row or first.facts.column_gram is not None):
            known = compose(*rest).block_circulant_gram()
            share = first.facts.column_gram
            if known is not None:
                return known.times(mean_square(first) if share is None else share, share is not None)
        return known

    def _offset_gram(self, offsets: np.ndarray, weights: np.ndarray) -> np.ndarray | None:
        first, *rest = self.factors
        if not first.facts.one_per_row:
            return super()._offset_gram(offsets, weights)
        squares = first.abs2()
        if squares is None or self.device_array is not None:
            return None
        return compose(*rest)._offset_gram(offsets, to_numpy(squares.adjoint(weights)))

    def _spectral_atoms(self) -> SpectralAtoms | None:
        return atoms_of_product(self.factors)

    def _stored_entries(self) -> int:
        *left, last = self.factors
        if last.facts.diagonal:
            return compose(*left).stored_entries
        return last.stored_entries if all(factor.facts.one_per_row for factor in left) else 0

    def _expression(self) -> str:
        return " @ ".join(op._bracketed(3) for op in self.factors)


class Sum(Operator):
    """Sum of two or more operators of one shape."""

    _binding = 1

    def __init__(self, terms: Sequence[Operator]) -> None:
        diagonal = all(op.facts.diagonal for op in terms)
        super().__init__(
            terms[0].shape,
            is_complex=any(op.is_complex for op in terms),
            precision=common_precision(terms),
            facts=Facts(diagonal=diagonal, one_per_row=diagonal, one_per_column=diagonal),
        )
        self.terms = tuple(terms)

    def _parts(self) -> tuple[Operator, ...]:
        return self.terms

    def _device_array(self) -> Array | None:
        return common_device_array(self.terms)

    def _forward(self, x: Array) -> Array:
        return reduce(plus, (op._forward(x) for op in self.terms))

    def _adjoint(self, y: Array) -> Array:
        return reduce(plus, (op._adjoint(y) for op in self.terms))

    def _in_precision(self, precision: str) -> Operator:
        return Sum([op._in_precision(precision) for op in self.terms])

    def _column_groups(self) -> np.ndarray | None:
        return agreed_groups([op.groups for op in self.terms])

    def _row_groups(self) -> np.ndarray | None:
        return agreed_groups([op.row_groups for op in self.terms])

    def _column_shape(self) -> tuple[int, ...] | None:
        return agreed_shape([op.column_shape for op in self.terms])

    def _row_places(self) -> np.ndarray | None:
        return agreed_groups([op.row_places for op in self.terms])

    def _sparse_matrix(self) -> scipy.sparse.csr_array | None:
        known = all_sparse(self.terms)
        return None if known is None else reduce(plus, known)

    def _expression(self) -> str:
        return " + ".join(op._expression() for op in self.terms).replace("+ -", "- ")


def compose(*operators: Operator) -> Operator:
    """Return the product of ``operators``; products among them are opened up.

    Examples
    --------
    >>> from cofem.operators import DCT, Mask
    >>> compose(Mask([0, 3], 8), DCT(8).T)
    <Mask(2 of 8) @ DCT(8).T, shape (2, 8)>
    """
    for left, right in pairwise(operators):
        if left.shape[1] != right.shape[0]:
            raise ValueError(f"shapes do not match in {left} @ {right}: {left.shape} and {right.shape}")
    factors: list[Operator] = []
    for op in operators:
        factors.extend(op.factors if isinstance(op, Product) else [op])
    return factors[0] if len(factors) == 1 else Product(factors)


def add(*operators: Operator) -> Operator:
    """Return the sum of ``operators``; sums among them are opened up.

    Examples
    --------
    >>> from cofem.operators import DCT, Identity
    >>> add(Identity(4), DCT(4))
    <Identity(4) + DCT(4), shape (4, 4)>
    """
    terms: list[Operator] = []
    for op in operators:
        if op.shape != operators[0].shape:
            first = operators[0]
            raise ValueError(f"shapes do not match in {first} + {op}: {first.shape} and {op.shape}")
        terms.extend(op.terms if isinstance(op, Sum) else [op])
    return terms[0] if len(terms) == 1 else Sum(terms)


def scale(scalar: complex, operator: Operator) -> Operator:
    """Return ``scalar * operator``; multiples of multiples become one, and a factor of one none.

    Examples
    --------
    >>> from cofem.operators import DCT
    >>> scale(3, scale(2, DCT(4)))
    <6 * DCT(4), shape (4, 4)>
    """
    if isinstance(operator, Scaled):
        scalar, operator = scalar * operator.scalar, operator.operator
    if not cmath.isfinite(scalar):
        raise ValueError(f"a scalar times an operator must be finite, got {scalar}")
    if scalar == 1:
        return operator
    # A real number kept as complex would make a real operator complex.
    return Scaled(scalar if scalar.imag else float(scalar.real), operator)


def _picks(operators: Iterable[Operator]) -> bool:
    """Tell whether the first of these operators picks rows inside, so that it is not known which they are."""
    first = next(iter(operators), None)
    return first is not None and any(part.facts.one_per_row or _picks([part]) for part in first._parts()[:1])
