"""What an operator does to vectors: products with Phi, with its adjoint and with its Gram operators."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from cofem._arrays import Array, DeviceCache, as_floating

if TYPE_CHECKING:
    from cofem.operators.base import Operator
    from cofem.operators.facts import Facts

#: Weights of shape (D,) by precision, "float32" or "float64".
Weights = Callable[[str], DeviceCache]


class FusedGram(Protocol):
    """A Gram operator of two factors in one go."""

    def pays(self, x: Array) -> bool:
        """Tell whether it is faster on ``x`` than one factor after the other."""

    def __call__(self, x: Array) -> Array:
        """Return the Gram operator applied to every vector along the last axis."""

    def away(self, x: Array, gain: float, overwrite_x: bool = False) -> Array:
        """Return ``x`` less `gain` times that; the contents of ``x`` may be destroyed if so told."""


class Action(ABC):
    """Products with Phi, of shape (N, D), and what they are computed in.

    Attributes
    ----------
    shape : tuple of int
        ``(N, D)``.
    is_complex, precision, facts
        What `Operator` was made with.
    """

    shape: tuple[int, int]
    is_complex: bool
    precision: str | None
    facts: Facts

    @property
    @abstractmethod
    def H(self) -> Operator:
        """Hermitian adjoint, shape (D, N)."""

    @property
    def device_array(self) -> Array | None:
        """An array on the device where the numbers of the operator are; None for NumPy.

        An operator that has one works on arrays of that library and device only.

        Examples
        --------
        None for numbers in NumPy, and for an operator that stores none:

        >>> from cofem.operators import DCT, Dense
        >>> Dense([[1.0, 2.0]]).device_array is None, DCT(8).device_array is None
        (True, True)
        """
        return self._device_array()

    @property
    def home(self) -> Array | None:
        """Old name of `device_array`.

        Examples
        --------
        >>> import warnings
        >>> from cofem.operators import DCT
        >>> with warnings.catch_warnings(action="ignore"):
        ...     DCT(8).home is None
        True
        """
        warnings.warn("Operator.home is now called device_array", DeprecationWarning, stacklevel=2)
        return self.device_array

    def _device_array(self) -> Array | None:
        return None

    @property
    def dtype(self) -> np.dtype:
        """Type of the entries; double precision if the operator has no precision of its own.

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import FFT, Dense
        >>> Dense(np.eye(2, dtype=np.float32)).dtype, FFT(8).dtype
        (dtype('float32'), dtype('complex128'))
        """
        parts = np.dtype(self.precision or "float64")
        return np.result_type(parts, np.complex64) if self.is_complex else parts

    # --- products -----------------------------------------------------------------------------------

    @abstractmethod
    def _forward(self, x: Array) -> Array:
        """Apply the operator to checked ``x`` of shape (..., D); return a new array (..., N)."""

    @abstractmethod
    def _adjoint(self, y: Array) -> Array:
        """Apply the Hermitian adjoint to checked ``y`` of shape (..., N); return a new array (..., D)."""

    def _forward_overwriting(self, x: Array) -> Array:
        """Return ``_forward(x)``, free to destroy ``x``: composites call this on their own intermediates."""
        return self._forward(x)

    def _adjoint_overwriting(self, y: Array) -> Array:
        """Return ``_adjoint(y)``, free to destroy ``y``."""
        return self._adjoint(y)

    def _forward_into(self, x: Array, out: Array) -> None:
        """Write a product into `out`, a part of a larger array."""
        out[...] = self._forward(x)

    def _gram(self, x: Array) -> Array:
        return self._adjoint_overwriting(self._forward(x))

    def forward(self, x: Array) -> Array:
        """Return ``Phi x`` for every vector along the last axis.

        Parameters
        ----------
        x : array of shape (..., D)
            Real or complex; integers and booleans are taken as float64.

        Returns
        -------
        array of shape (..., N)
            In the precision of ``x`` or of the operator, whichever is higher.

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import Dense
        >>> Phi = Dense([[1.0, 2.0, 0.0], [0.0, 1.0, 1.0]])
        >>> Phi.forward(np.array([1.0, 1.0, 1.0]))
        array([3., 2.])
        >>> Phi.forward(np.ones((5, 3))).shape  # a batch of five vectors
        (5, 2)
        """
        return self._forward(self._checked(x, self.shape[1], "x"))

    def adjoint(self, y: Array) -> Array:
        """Return ``Phi^H y`` for every vector along the last axis.

        Parameters
        ----------
        y : array of shape (..., N)
            As for `forward`.

        Returns
        -------
        array of shape (..., D)

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import Dense
        >>> Dense([[1.0 + 1.0j, 2.0 - 1.0j]]).adjoint(np.array([1.0]))
        array([1.-1.j, 2.+1.j])
        """
        return self._adjoint(self._checked(y, self.shape[0], "y"))

    def gram(self, x: Array) -> Array:
        """Return ``Phi^H Phi x`` for every vector along the last axis.

        Parameters
        ----------
        x : array of shape (..., D)
            As for `forward`.

        Returns
        -------
        array of shape (..., D)

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import Dense
        >>> Phi = Dense([[1.0, 2.0], [0.0, 1.0]])
        >>> Phi.gram(np.eye(2))  # all of Phi^H Phi, where that is small
        array([[1., 2.],
               [2., 5.]])
        """
        return self._gram(self._checked(x, self.shape[1], "x"))

    def gradient_step(
        self, x: Array, gain: float, shift: Array | None = None, overwrite_x: bool = False
    ) -> Array:
        """Return ``x - gain Phi^H Phi x + shift`` for every vector along the last axis.

        With ``shift = gain Phi^H y`` this is a step of gradient descent on ``|y - Phi x|^2 / 2``.

        Parameters
        ----------
        x : array of shape (..., D)
            As for `forward`.
        gain : float
            Length of the step.
        shift : array of shape (..., D), optional
            What is added; zeros by default.
        overwrite_x : bool
            If True, the contents of ``x`` may be destroyed, which saves memory.

        Returns
        -------
        array of shape (..., D)

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import Dense
        >>> Dense([[1.0, 2.0], [0.0, 1.0]]).gradient_step(np.ones(2), 0.1, np.ones(2))
        array([1.7, 1.3])
        """
        return self._gradient_step(self._checked(x, self.shape[1], "x"), gain, shift, overwrite_x)

    def _gradient_step(self, x: Array, gain: float, shift: Array | None, overwrite_x: bool) -> Array:
        out = self._gram(x)
        out *= -gain
        out += x
        if shift is not None:
            out += shift
        return out

    def dual_gram(self, v: Array, weights: Array | None = None) -> Array:
        """Return ``Phi diag(weights) Phi^H v`` for every vector along the last axis.

        Parameters
        ----------
        v : array of shape (..., N)
            As for `adjoint`.
        weights : array of shape (D,), optional
            Real numbers, or several rows of them as `v` has batches; ones by default.

        Returns
        -------
        array of shape (..., N)

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import Dense
        >>> Phi = Dense([[1.0, 2.0], [0.0, 1.0]])
        >>> Phi.dual_gram(np.eye(2), np.array([1.0, 10.0]))
        array([[41., 20.],
               [20., 10.]])
        """
        return self._dual_gram(self._checked(v, self.shape[0], "v"), weights)

    def _dual_gram(self, v: Array, weights: Array | None) -> Array:
        back = self._adjoint(v)
        if weights is not None:
            back *= weights
        return self._forward_overwriting(back)

    @property
    def _fuses_dual(self) -> bool:
        """Whether `dual_gram` costs less than the two products it stands for."""
        return False

    def add_weighted_product(self, x: Array, weights: Array, factor: float, out: Array) -> None:
        """Add ``factor B^H diag(weights) B x`` to `out`; differences do so band by band, which saves memory.

        Parameters
        ----------
        x : array of shape (..., D)
            Vectors.
        weights : array of shape (N,)
            Real numbers.
        factor : float
            A further number.
        out : array of the shape and type of x
            What it is added to.

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import Gradient
        >>> out = np.zeros(3)
        >>> Gradient(3).add_weighted_product(np.array([0.0, 1.0, 3.0]), np.array([1.0, 2.0]), 1.0, out)
        >>> out
        array([-1., -3.,  4.])
        """
        self._add_weighted_product(x, weights, factor, out)

    def _add_weighted_product(self, x: Array, weights: Array, factor: float, out: Array) -> None:
        inside = self.forward(x)
        inside *= weights
        inside *= factor
        out += self.adjoint(inside)

    def _gram_diagonal(self) -> Weights | None:
        """Return the diagonal of ``Phi^H Phi`` by precision, where that is diagonal, else None."""
        return None

    def _gram_between(self, weights: Weights) -> FusedGram | None:
        """Return a faster way to ``Phi^H diag(weights) Phi x`` than one after the other, if there is one."""
        return None

    def _adjoint_gram_between(self, weights: Weights) -> FusedGram | None:
        """Return the same for ``Phi^H`` in place of ``Phi``."""
        return None

    def _checked(self, x: Any, length: int, name: str) -> Array:
        x = as_floating(x, name)
        if x.ndim == 0 or x.shape[-1] != length:
            raise ValueError(
                f"{name} must have a last axis of length {length} for {self!r}, got shape {tuple(x.shape)}"
            )
        return x

    # --- the parts that products go through ---------------------------------------------------------

    @property
    def layout(self) -> str:
        """How the matrix is cut into chunks whose products are summed up; "" where it is in one piece.

        A checkpoint holds it: the last digits of a fit depend on it.

        Examples
        --------
        >>> import numpy as np
        >>> from cofem.operators import DCT, Distributed
        >>> (2 * Distributed(lambda i: np.eye(2), (2, 4), (2, 2))).layout, DCT(4).layout
        ('2 chunks of 2 columns', '')
        """
        return self._layout()

    def _layout(self) -> str:
        return "; ".join(filter(None, (part.layout for part in self._parts())))

    @property
    def takes_batches(self) -> bool:
        """Whether several vectors go through at once; False where a batch costs as much as one by one.

        Operators made of others take batches if all their parts do.

        Examples
        --------
        An operator of SciPy that was given no product with a matrix:

        >>> import numpy as np
        >>> from scipy.sparse.linalg import LinearOperator
        >>> from cofem.operators import DCT, as_operator
        >>> double = as_operator(LinearOperator((4, 4), matvec=lambda x: 2 * x, rmatvec=lambda y: 2 * y))
        >>> double.takes_batches, (double @ DCT(4)).takes_batches, DCT(4).takes_batches
        (False, False, True)
        """
        return all(part.takes_batches for part in self._parts())

    def _parts(self) -> tuple[Operator, ...]:
        """Return the operators that this one is made of."""
        return ()
