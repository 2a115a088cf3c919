"""What a prior is: the update of the precisions from the posterior's second moments."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from cofem._arrays import Array, at_least, library, place, reciprocal
from cofem.operators.boxes import Box


class RowLayout(NamedTuple):
    """Which band and place each of M coefficients belongs to, as the rows of an analysis operator do.

    Attributes
    ----------
    bands : ndarray of int, shape (M,)
        Numbers of the bands, from 0.
    places : ndarray of int, shape (M,) or None
        Places in C order; None if there are none.
    shape : tuple of int or None
        Shape of the array of places.
    boxes : tuple of Box or None
        The same in few numbers, where each band has the places of a box of the grid; then `bands` and
        `places` may be None.

    Examples
    --------
    Differences of three samples, which belong to the first sample of each pair:

    >>> import numpy as np
    >>> RowLayout(np.zeros(2, int), np.array([0, 1]), (3,)).shape
    (3,)
    """

    bands: np.ndarray | None
    places: np.ndarray | None
    shape: tuple[int, ...] | None
    boxes: tuple[Box, ...] | None = None


@dataclass(frozen=True)
class Prior(ABC):
    """``z_j ~ N(0, 1 / alpha_j)`` with some relation between the alphas.

    The M-step is all that an algorithm needs of a prior: alpha from the second moments
    ``m_j = E |z_j|^2`` (averaged over tasks, where there are several).

    Examples
    --------
    A prior of one's own, with one precision for all coefficients (nothing is sparse then):

    >>> import numpy as np, cofem
    >>> class Common(Prior):
    ...     name = "common"
    ...     def precisions(self, second_moment, cap):
    ...         return np.full_like(second_moment, min(1 / second_moment.mean(), cap))
    >>> post = cofem.fit(np.eye(3), np.array([2.0, 0.0, 1.0]), noise_std=0.1, prior=Common())
    >>> np.unique(post.alpha).size, np.round(post.mean, 1).tolist()
    (1, [2.0, 0.0, 1.0])
    """

    name: ClassVar[str]
    #: Whether each coefficient has a precision of its own, whatever the others are.
    is_independent: ClassVar[bool] = False
    #: Whether several data vectors share their alpha.
    joins_tasks: ClassVar[bool] = False
    #: Whether the update maximises what `slope` is the derivative of, so that steps may be extrapolated.
    extrapolates: ClassVar[bool] = True
    #: Whether a coefficient whose precision went too far in a leap never comes back, whatever the data say.
    prunes: ClassVar[bool] = False
    #: Whether the model is the same in any units of the columns of Phi: not where coefficients share a
    #: precision, whose sizes are then compared.
    free_of_units: ClassVar[bool] = False
    #: Whether precisions are the same as before for second moments that are the same in each band.
    keeps_bands: ClassVar[bool] = False
    #: Whether precisions are means over several coefficients, so that errors of single ones average out.
    averages: ClassVar[bool] = False
    #: How far it ties coefficients to each other, from 0 (not at all) to 2 (one precision for all): of priors
    #: that predict few data equally well, the one that ties more is chosen.
    restraint: ClassVar[float] = 0.0
    #: Whether precisions follow from the squares of the mean alone, so that the fit ends at a mode.
    of_mode: ClassVar[bool] = False
    #: Share of the precisions that a fit ended with at which its moments are taken.
    relaxation: ClassVar[float] = 1.0
    #: Array libraries that the update works on, such as ``("numpy", "torch")``; None for any.
    libraries: ClassVar[tuple[str, ...] | None] = None

    @property
    def label(self) -> str:
        """The prior in a few words, for tables.

        Examples
        --------
        >>> from cofem import Block, MultiTask, Power
        >>> Power(0.5).label, MultiTask(Block(3)).label
        ('Power(0.5)', 'MultiTask(Block(3))')
        """
        return repr(self)

    @property
    def within_a_task(self) -> Prior:
        """The prior of one task by itself.

        Examples
        --------
        >>> from cofem import Block, MultiTask
        >>> MultiTask(Block(3)).within_a_task.groups
        3
        """
        return self

    @property
    def starts_from(self) -> Prior | None:
        """The prior of a fit whose precisions one with this prior starts from; None for the usual start.

        Examples
        --------
        >>> from cofem import Independent, Sparser
        >>> Independent().starts_from, Sparser(1.5).starts_from
        (None, Independent())
        """
        return None

    @property
    def leads_on(self) -> bool:
        """Whether it is a step on the way to another prior, which may suit the data where this one does not.

        Examples
        --------
        >>> from cofem import Independent, Sparser
        >>> Independent().leads_on, Sparser(1.5).leads_on
        (False, True)
        """
        return False

    def check(self, n_columns: int) -> None:  # noqa: B027 (most priors fit any dictionary)
        """Refuse what does not fit a dictionary with so many columns, naming the argument.

        Examples
        --------
        >>> from cofem import Block, Independent
        >>> Independent().check(8)  # fits any
        >>> Block([[0, 9]]).check(8)
        Traceback (most recent call last):
            ...
        ValueError: groups[0] must hold indices from 0 to 7, got [0, 9]
        """

    def check_arrays(self, y: Array) -> None:
        """Refuse data of an array library that the update does not work on.

        Examples
        --------
        >>> import numpy as np
        >>> from cofem import Block
        >>> Block(2).check_arrays(np.ones(3))  # fits
        """
        if self.libraries is not None and library(y) not in self.libraries:
            raise TypeError(
                f"the {type(self).__name__} prior works on arrays of {' and '.join(self.libraries)} only, "
                f"but y or Phi is {place(y)}"
            )

    def blocks(self, n_columns: int) -> np.ndarray | None:
        """Return the block of each coefficient, where blocks are zero or not as a whole; else None.

        Examples
        --------
        >>> from cofem import Block, Independent
        >>> Block(2).blocks(4).tolist(), Independent().blocks(4)
        ([0, 0, 1, 1], None)
        """
        return None

    def for_rows(self, layout: RowLayout) -> Prior:
        """Return the prior for the rows of an analysis operator; by default it needs to know nothing of them.

        Examples
        --------
        >>> import numpy as np
        >>> from cofem import Independent
        >>> Independent().for_rows(RowLayout(np.zeros(3, int), np.arange(3), (3,)))
        Independent()
        """
        return self

    def at_noise(self, ratio: float) -> Prior:
        """Return the prior with the same update for noise whose standard deviation is `ratio` times as large.

        By default it does not depend on the noise.

        Examples
        --------
        >>> from cofem import Independent, Laplace
        >>> Independent().at_noise(2.0), Laplace(2).at_noise(2.0).threshold
        (Independent(), 1.0)
        """
        return self

    def for_columns(self, energy: Array, noise_var: float) -> Prior:
        """Return the prior for columns of these squared norms, shape (D,), and data with this noise variance.

        By default it needs to know nothing of them.

        Examples
        --------
        >>> import numpy as np
        >>> from cofem import Independent
        >>> Independent().for_columns(np.ones(3), 0.01)
        Independent()
        """
        return self

    @abstractmethod
    def precisions(self, second_moment: Array, cap: float) -> Array:
        """M-step: alpha, at most `cap`, from second moments of shape (D,), which are not to be changed.

        Examples
        --------
        >>> import numpy as np
        >>> from cofem import Block, Independent
        >>> second_moment = np.array([1.0, 3.0, 0.5, 0.0])
        >>> Independent().precisions(second_moment, cap=100.0).round(2).tolist()
        [1.0, 0.33, 2.0, 100.0]
        >>> Block(2).precisions(second_moment, cap=100.0).tolist()
        [0.5, 0.5, 4.0, 4.0]
        """

    def precisions_in_place(self, second_moment: Array, cap: float) -> Array:
        """M-step as `precisions`, where the second moments are wanted no more: they may be overwritten.

        Examples
        --------
        >>> import numpy as np
        >>> from cofem import Independent
        >>> Independent().precisions_in_place(np.array([0.5, 0.25]), cap=100.0).tolist()
        [2.0, 4.0]
        """
        return self.precisions(second_moment, cap)

    def slope(self, alpha: Array, second_moment: Array, cap: float) -> Array:
        """Return the derivative of what the updates maximise along ``log alpha``, up to a factor; shape (D,).

        It safeguards extrapolated steps. That of the log evidence, ``1 - alpha_j m_j``, unless a prior says
        otherwise.

        Examples
        --------
        >>> import numpy as np
        >>> from cofem import Independent
        >>> Independent().slope(np.array([2.0, 1.0]), np.array([0.5, 3.0]), cap=1e12).tolist()
        [0.0, -2.0]
        """
        return evidence_gradient(alpha, second_moment)


@dataclass(frozen=True)
class Independent(Prior):
    """Each coefficient has a precision of its own: ``alpha_j = 1 / m_j``.

    Examples
    --------
    >>> import numpy as np
    >>> Independent().precisions(np.array([2.0, 0.0]), cap=1e12).tolist()
    [0.5, 1000000000000.0]
    """

    name: ClassVar[str] = "independent"
    is_independent: ClassVar[bool] = True
    free_of_units: ClassVar[bool] = True
    keeps_bands: ClassVar[bool] = True

    def precisions(self, second_moment: Array, cap: float) -> Array:
        """M-step."""
        return capped_inverse(second_moment, cap)


def capped_inverse(x: Array, cap: float) -> Array:
    """``1 / x``, at most `cap`."""
    return reciprocal(at_least(x, 1 / cap))


def evidence_gradient(alpha: Array, second_moment: Array) -> Array:
    """Return the derivative of the log evidence with respect to ``log alpha``, up to a constant factor.

    ``1 - alpha_j E |z_j|^2``; it vanishes at a fixed point of EM.
    """
    gradient = alpha * second_moment
    gradient *= -1
    gradient += 1
    return gradient
