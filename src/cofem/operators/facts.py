"""Structural facts about an operator: what solvers may rely on without looking inside."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Facts:
    """What is known for certain about the entries of an operator; the defaults claim nothing.

    Parameters
    ----------
    row_gram : float or None
        ``c`` with ``Phi Phi^H = c I``: the rows are orthonormal up to scale.
    column_gram : float or None
        ``c`` with ``Phi^H Phi = c I``: the columns are orthonormal up to scale.
    diagonal : bool
        The operator is square and its entries off the diagonal are zero.
    one_per_row, one_per_column : bool
        No row (column) has more than one entry different from zero. Such a factor only moves and scales
        the entries of its neighbour in a product, so that ``|A B|^2 = |A|^2 |B|^2`` entry by entry.

    Examples
    --------
    >>> from cofem.operators import DCT, Mask
    >>> (2.0 * Mask([0, 3], 8) @ DCT(8).T).facts.row_gram
    4.0
    """

    row_gram: float | None = None
    column_gram: float | None = None
    diagonal: bool = False
    one_per_row: bool = False
    one_per_column: bool = False

    def of_adjoint(self) -> Facts:
        """Return the facts of ``Phi^H``.

        Examples
        --------
        >>> Facts(row_gram=1.0, one_per_row=True).of_adjoint()
        Facts(row_gram=None, column_gram=1.0, diagonal=False, one_per_row=False, one_per_column=True)
        """
        return Facts(
            row_gram=self.column_gram,
            column_gram=self.row_gram,
            diagonal=self.diagonal,
            one_per_row=self.one_per_column,
            one_per_column=self.one_per_row,
        )

    def of_multiple(self, scalar: complex) -> Facts:
        """Return the facts of ``scalar * Phi``.

        Examples
        --------
        >>> Facts(row_gram=1.0).of_multiple(-2.0).row_gram
        4.0
        """
        power = abs(scalar) * abs(scalar)  # infinite rather than an OverflowError
        return Facts(
            row_gram=None if self.row_gram is None else power * self.row_gram,
            column_gram=None if self.column_gram is None else power * self.column_gram,
            diagonal=self.diagonal,
            one_per_row=self.one_per_row,
            one_per_column=self.one_per_column,
        )

    @staticmethod
    def of_product(factors: Sequence[Facts]) -> Facts:
        """Return the facts of the product of operators with these facts.

        Examples
        --------
        What is not known of one factor is not known of the product:

        >>> scaled, orthonormal = Facts(row_gram=4.0), Facts(row_gram=1.0, column_gram=1.0)
        >>> product = Facts.of_product([scaled, orthonormal])
        >>> product.row_gram, product.column_gram
        (4.0, None)
        """
        return Facts(
            row_gram=_if_all_known([f.row_gram for f in factors], math.prod),
            column_gram=_if_all_known([f.column_gram for f in factors], math.prod),
            diagonal=all(f.diagonal for f in factors),
            one_per_row=all(f.one_per_row for f in factors),
            one_per_column=all(f.one_per_column for f in factors),
        )

    @staticmethod
    def of_stack(parts: Sequence[Facts]) -> Facts:
        """Return the facts of operators stacked on top of each other: ``Phi^H Phi`` is the sum of theirs.

        Examples
        --------
        >>> orthonormal = Facts(row_gram=1.0, column_gram=1.0)
        >>> stack = Facts.of_stack([orthonormal, orthonormal.of_multiple(2.0)])
        >>> stack.row_gram, stack.column_gram
        (None, 5.0)
        """
        return Facts(
            column_gram=_if_all_known([f.column_gram for f in parts], sum),
            one_per_row=all(f.one_per_row for f in parts),
        )


def _if_all_known(
    values: Sequence[float | None], combine: Callable[[Iterable[float]], float]
) -> float | None:
    known = [value for value in values if value is not None]
    return combine(known) if len(known) == len(values) else None
