"""Random compositions of operators, from dense matrices to non-uniform Fourier transforms.

Wrong is what is wrong in `synthesis`, and besides

1. an adjoint that is not one,
2. a product with a vector, a norm of columns or a fact (orthonormal rows or columns, one entry in a row)
   that the
   dense matrix does not have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse

from cofem.operators import (
    DCT,
    FFT,
    NUFFT,
    BlockDCT,
    Centred,
    Chunked,
    Convolution,
    Dense,
    Diagonal,
    Gradient,
    Identity,
    Mask,
    Operator,
    Sparse,
    Wavelet,
    WaveletFrame,
    block_diag,
    check_adjoint,
    hstack,
    vstack,
)

from . import synthesis
from .silence import Case

Rng = np.random.Generator


def _matrix(rng: Rng, d: int) -> np.ndarray:
    return rng.standard_normal((int(rng.integers(max(4, d // 4), 2 * d)), d)) / d**0.5


def _kernel(rng: Rng) -> np.ndarray:
    kernel: np.ndarray = np.exp(-0.5 * (np.arange(-6, 7) / rng.uniform(0.5, 2)) ** 2)
    return kernel / kernel.sum()


#: Operators with d columns, where d is a multiple of 8.
LEAVES: dict[str, Callable[[Rng, int], Operator]] = {
    "dense": lambda rng, d: Dense(_matrix(rng, d)),
    "complex": lambda rng, d: Dense(_matrix(rng, d) * np.exp(1j * rng.uniform(0, 6, d))),
    "sparse": lambda rng, d: Sparse(scipy.sparse.random_array((d, d), density=0.2, rng=rng)),
    "chunked": lambda rng, d: Chunked(_matrix(rng, d), rows=5),
    "centred": lambda rng, d: Centred(Dense(_matrix(rng, d) + 1)),
    "dct": lambda rng, d: DCT(d),
    "inverse dct": lambda rng, d: DCT(d).T,
    "block dct": lambda rng, d: BlockDCT(d, 8),
    "fft": lambda rng, d: FFT(d).H,
    "hartley": lambda rng, d: FFT(d, real=True),
    "nufft": lambda rng, d: NUFFT(rng.uniform(0, 1, int(rng.integers(d // 2, 2 * d))), d),
    "wavelet": lambda rng, d: Wavelet(d, str(rng.choice(["haar", "db2", "sym4"])), level=1).T,
    "frame": lambda rng, d: WaveletFrame(d, "haar", 1),
    "gradient": lambda rng, d: Gradient(d, "periodic"),
    "convolution": lambda rng, d: Convolution(_kernel(rng), d),
    "echo": lambda rng, d: Convolution(
        [1.0, *np.zeros(int(rng.integers(2, d))), 0.5], d, mode="linear", causal=True
    ),
    "diagonal": lambda rng, d: Diagonal(rng.uniform(0.5, 2.0, d)),
    "mask": lambda rng, d: Mask(np.sort(rng.choice(d, max(4, 3 * d // 4), replace=False)), d),
    "identity": lambda rng, d: Identity(d),
}


def leaf(rng: Rng, d: int) -> Operator:
    """Return an operator with d columns."""
    names = [name for name in LEAVES if d % 8 == 0 or ("wavelet" not in name and "block" not in name)]
    return LEAVES[str(rng.choice(names))](rng, d)


def tree(rng: Rng, d: int, depth: int, root: str = "") -> Operator:
    """Return a random composition with d columns."""
    if depth == 0:
        return leaf(rng, d)
    kind = root or str(rng.choice(KINDS))
    inner = tree(rng, d, depth - 1)
    if kind == "product":
        return leaf(rng, inner.shape[0]) @ inner
    if kind == "masked":
        n = inner.shape[0]
        return Mask(np.sort(rng.choice(n, max(4, n // 2), replace=False)), n) @ inner
    if kind == "scaled":
        return float(rng.choice([-2.0, 1e-4, 1e5])) * inner
    if kind == "adjoint":
        return inner.H
    if kind == "side by side":
        return hstack([inner, leaf(rng, inner.shape[0]).H])
    if kind == "stacked":
        return vstack([inner, leaf(rng, inner.shape[1])])
    if kind == "blocks":
        return block_diag([inner, leaf(rng, d)])
    if kind == "sum":
        return inner + Dense(0.1 * rng.standard_normal(inner.shape) / d**0.5)
    assert kind == "columns scaled"
    return inner @ Diagonal(10 ** rng.uniform(-1, 1, inner.shape[1]))


KINDS = (
    "product",
    "masked",
    "scaled",
    "adjoint",
    "side by side",
    "stacked",
    "blocks",
    "sum",
    "columns scaled",
)


def draw(kind: str, number: int) -> Case:
    """Return a case whose root is of a kind."""
    rng = np.random.default_rng([number, 20261119])
    d = 8 * int(rng.integers(2, 10))
    Phi = tree(rng, d, int(rng.integers(1, 4)), kind)
    while max(Phi.shape) > 400:
        Phi = tree(rng, d, 1, kind)
    return synthesis.problem(Phi, f"{Phi!r}", rng, number)


def judge(case: Case) -> list[str]:
    """Return what is wrong with an operator, or silently wrong with the fit."""
    return [*structure(case.Phi), *synthesis.judge(case)]


def structure(operator: Any) -> list[str]:
    """Return what an operator says of itself that its dense matrix does not have."""
    wrong = []
    try:
        check_adjoint(operator)
    except Exception as error:
        wrong.append(f"{type(error).__name__}: {error}")
    matrix = operator.to_dense()
    size = float(np.abs(matrix).max()) or 1.0
    gram = matrix.conj().T @ matrix
    x = np.random.default_rng(0).standard_normal(matrix.shape[1])
    pairs = {
        "forward": (operator.forward(x), matrix @ x),
        "gram": (operator.gram(x), gram @ x),
        "column norms": (operator.column_norms() ** 2, np.diagonal(gram).real),
    }
    for name, (found, exact) in pairs.items():
        if not np.allclose(found, exact, rtol=1e-6, atol=1e-8 * size**2 * max(matrix.shape)):
            if name == "column norms" and not operator.column_norms_exact:
                continue
            wrong.append(f"{name} differs from the dense matrix by {np.abs(found - exact).max():.2g}")
    facts = operator.facts
    for name, stated, exact in (
        ("rows", facts.row_gram, matrix @ matrix.conj().T),
        ("columns", facts.column_gram, gram),
    ):
        if stated is not None and not np.allclose(exact, stated * np.eye(len(exact)), atol=1e-6 * size**2):
            wrong.append(f"{name} are not orthogonal with the square {stated:.3g}")
    for axis, stated in ((1, facts.one_per_row), (0, facts.one_per_column)):
        # A transform leaves rounding where the entry is zero.
        if stated and np.count_nonzero(np.abs(matrix) > 1e-12 * size, axis=axis).max() > 1:
            wrong.append(f"{'rows' if axis else 'columns'} have more than one entry")
    return wrong
