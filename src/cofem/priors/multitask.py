"""Precisions shared by several tasks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from cofem._arrays import Array, namespace
from cofem.operators.boxes import Box
from cofem.priors.base import Independent, Prior, RowLayout


@dataclass(frozen=True)
class MultiTask(Prior):
    """Tasks share their precisions: second moments are averaged over the tasks (Ji, Dunson and Carin 2008).

    Data of shape (N, L) have one dictionary in common, and the variances are computed once for all tasks.
    Lists of dictionaries and data may differ in their numbers of rows.

    Parameters
    ----------
    prior : Prior, optional
        Who shares a precision within a task: by default nobody (``alpha_j = L / sum_l E |z_jl|^2``). With
        ``MultiTask(Block(3))``, blocks of three are zero or not as a whole and in all tasks, as the free
        orientations of a dipole over time are.

    Examples
    --------
    >>> import numpy as np, cofem
    >>> rng = np.random.default_rng(0)
    >>> Phi = rng.standard_normal((20, 40))
    >>> Z = np.zeros((40, 3)); Z[[3, 17]] = rng.standard_normal((2, 3))
    >>> Y = Phi @ Z + 0.01 * rng.standard_normal((20, 3))
    >>> post = cofem.fit(Phi, Y, noise_std=0.01, prior=cofem.MultiTask())
    >>> post.mean.shape, bool(np.abs(post.mean - Z).max() < 0.05)
    ((40, 3), True)
    >>> cofem.fit(Phi, Y, noise_std=0.01, prior=cofem.MultiTask(cofem.Block(4))).alpha.shape
    (40,)
    """

    prior: Prior = field(default_factory=Independent)

    name: ClassVar[str] = "multi-task"
    joins_tasks: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.prior, Prior):
            raise TypeError(f"prior must be a prior such as cofem.Block(3), got {self.prior!r}")
        if self.prior.joins_tasks:
            raise ValueError(f"prior must be one for a single task, got {self.prior!r}")

    @property
    def label(self) -> str:
        """The prior in a few words."""
        return f"MultiTask({'' if self.prior == Independent() else self.prior.label})"

    @property
    def restraint(self) -> float:  # type: ignore[override]
        """How far it ties coefficients of a task to each other, and those of several tasks."""
        return self.prior.restraint + 0.01

    @property
    def is_independent(self) -> bool:  # type: ignore[override]
        """Whether coefficients of a task have precisions of their own."""
        return self.prior.is_independent

    @property
    def extrapolates(self) -> bool:  # type: ignore[override]
        """Whether steps may be extrapolated."""
        return self.prior.extrapolates

    @property
    def prunes(self) -> bool:  # type: ignore[override]
        """Whether coefficients that were lost in a leap never come back."""
        return self.prior.prunes

    @property
    def free_of_units(self) -> bool:  # type: ignore[override]
        """Whether units of columns make no difference."""
        return self.prior.free_of_units

    @property
    def averages(self) -> bool:  # type: ignore[override]
        """Whether precisions are means over several coefficients of a task."""
        return self.prior.averages

    @property
    def libraries(self) -> tuple[str, ...] | None:  # type: ignore[override]
        """Array libraries that the update works on."""
        return self.prior.libraries

    @property
    def of_mode(self) -> bool:  # type: ignore[override]
        """Whether precisions follow from the squares of the means alone."""
        return self.prior.of_mode

    @property
    def relaxation(self) -> float:  # type: ignore[override]
        """Share of the precisions that is kept at the end."""
        return self.prior.relaxation

    @property
    def within_a_task(self) -> Prior:
        """The prior of one task by itself."""
        return self.prior

    @property
    def starts_from(self) -> Prior | None:
        """The prior of a fit that this one starts from, over tasks."""
        first = self.prior.starts_from
        return None if first is None else MultiTask(first)

    @property
    def leads_on(self) -> bool:
        """Whether it is a step on the way to another prior."""
        return self.prior.leads_on

    def check(self, n_columns: int) -> None:
        """Refuse what does not fit a dictionary with so many columns.

        Examples
        --------
        >>> from cofem import Block
        >>> MultiTask(Block([[0, 9]])).check(8)
        Traceback (most recent call last):
            ...
        ValueError: groups[0] must hold indices from 0 to 7, got [0, 9]
        """
        self.prior.check(n_columns)

    def blocks(self, n_columns: int) -> np.ndarray | None:
        """Return the block of each coefficient."""
        return self.prior.blocks(n_columns)

    def for_rows(self, layout: RowLayout) -> MultiTask:
        """Return the prior for the rows of an analysis operator."""
        return replace(self, prior=self.prior.for_rows(layout))

    def at_noise(self, ratio: float) -> MultiTask:
        """Return the prior with the same update at another noise."""
        return replace(self, prior=self.prior.at_noise(ratio))

    def for_columns(self, energy: Array, noise_var: float) -> MultiTask:
        """Return the prior for columns of these squared norms and data with this noise."""
        return replace(self, prior=self.prior.for_columns(energy, noise_var))

    def precisions(self, second_moment: Array, cap: float) -> Array:
        """M-step."""
        return self.prior.precisions(second_moment, cap)

    def slope(self, alpha: Array, second_moment: Array, cap: float) -> Array:
        """Return the derivative of what the updates maximise."""
        return self.prior.slope(alpha, second_moment, cap)


@dataclass(frozen=True)
class OneAfterAnother(Prior):
    """The coefficients of several tasks in one vector, task by task, with precisions in common.

    For tasks with dictionaries of their own, which make one block-diagonal dictionary.

    Parameters
    ----------
    prior : Prior
        Who shares a precision within a task.
    n_tasks : int
        Number of tasks.
    boxes : tuple of Box or None
        Bands of the rows of all tasks, in analysis form; see `for_rows`.

    Examples
    --------
    >>> import numpy as np
    >>> OneAfterAnother(Independent(), 2).precisions(np.array([1.0, 3.0, 3.0, 1.0]), cap=1e12).tolist()
    [0.5, 0.5, 0.5, 0.5]
    """

    prior: Prior
    n_tasks: int
    boxes: tuple[Box, ...] | None = field(default=None, repr=False, compare=False)

    name: ClassVar[str] = "one after another"
    averages: ClassVar[bool] = True

    @property
    def within_a_task(self) -> Prior:
        """The prior of one task by itself."""
        return self.prior

    @property
    def extrapolates(self) -> bool:  # type: ignore[override]
        """Whether steps may be extrapolated."""
        return self.prior.extrapolates

    @property
    def prunes(self) -> bool:  # type: ignore[override]
        """Whether coefficients that were lost in a leap never come back."""
        return self.prior.prunes

    @property
    def libraries(self) -> tuple[str, ...] | None:  # type: ignore[override]
        """Array libraries that the update works on."""
        return self.prior.libraries

    @property
    def starts_from(self) -> Prior | None:
        """The prior of a fit that this one starts from, over tasks."""
        first = self.prior.starts_from
        return None if first is None else OneAfterAnother(first, self.n_tasks)

    @property
    def of_mode(self) -> bool:  # type: ignore[override]
        """Whether precisions follow from the squares of the means alone."""
        return self.prior.of_mode

    @property
    def relaxation(self) -> float:  # type: ignore[override]
        """Share of the precisions that is kept at the end."""
        return self.prior.relaxation

    def at_noise(self, ratio: float) -> OneAfterAnother:
        """Return the prior with the same update at another noise."""
        return replace(self, prior=self.prior.at_noise(ratio))

    def for_columns(self, energy: Array, noise_var: float) -> OneAfterAnother:
        """Return the prior for columns of these squared norms, of all tasks, and data with this noise."""
        return replace(self, prior=self.prior.for_columns(self._mean(energy), noise_var))

    @property
    def keeps_bands(self) -> bool:  # type: ignore[override]
        """Whether second moments that are the same in each band keep the precisions."""
        return self.prior.keeps_bands

    def for_rows(self, layout: RowLayout) -> OneAfterAnother:
        """Return the prior for the rows of an analysis operator that acts on each task.

        Their order is that of `cofem.operators.stack.repeated`: band by band and in a band task by task where
        bands are boxes of a grid whose first axis is the task, else task by task.

        Examples
        --------
        >>> import numpy as np
        >>> boxes = Box(0, (0, 0), (2, 1)), Box(2, (0, 0), (2, 1))
        >>> tied = OneAfterAnother(Independent(), 2).for_rows(RowLayout(None, None, (2, 1), boxes))
        >>> tied.precisions(np.array([1.0, 3.0, 0.5, 0.5]), cap=1e12).tolist()
        [0.5, 0.5, 2.0, 2.0]
        """
        shape, boxes, n = layout.shape, layout.boxes, self.n_tasks
        if boxes is None or shape is None:
            bands, places = (None if x is None else x[: x.size // n] for x in (layout.bands, layout.places))
            return replace(self, prior=self.prior.for_rows(RowLayout(bands, places, None)))
        starts = np.cumsum([0, *(box.size // n for box in boxes)]).tolist()
        one = tuple(
            Box(start, box.origin[1:], box.shape[1:]) for start, box in zip(starts, boxes, strict=False)
        )
        return replace(self, prior=self.prior.for_rows(RowLayout(None, None, shape[1:], one)), boxes=boxes)

    def blocks(self, n_columns: int) -> np.ndarray | None:
        """Return the block of each coefficient, the same in all tasks."""
        labels = self.prior.blocks(n_columns // self.n_tasks)
        return None if labels is None else np.tile(labels, self.n_tasks)

    def of_one(self, values: Array) -> Array:
        """Return what is the same in all tasks, such as the precisions, once."""
        if self.boxes is None:
            return values[: values.shape[0] // self.n_tasks]
        ends = [box.start + box.size // self.n_tasks for box in self.boxes]
        parts = [values[box.start : end] for box, end in zip(self.boxes, ends, strict=True)]
        return namespace(values).concat(parts)

    def check(self, n_columns: int) -> None:
        """Refuse what does not fit the columns of one task."""
        self.prior.check(n_columns // self.n_tasks)

    def precisions(self, second_moment: Array, cap: float) -> Array:
        """M-step."""
        return self.of_all(self.prior.precisions(self._mean(second_moment), cap))

    def slope(self, alpha: Array, second_moment: Array, cap: float) -> Array:
        """Return the derivative of what the updates maximise, with a share for each task."""
        return self.of_all(self.prior.slope(self.of_one(alpha), self._mean(second_moment), cap))

    def _mean(self, values: Array) -> Array:
        xp = namespace(values)
        if self.boxes is None:
            return xp.mean(xp.reshape(values, (self.n_tasks, -1)), axis=0)
        means = [xp.mean(box.of(values), axis=0) for box in self.boxes]
        return xp.concat([xp.reshape(part, (-1,)) for part in means])

    def of_all(self, values: Array) -> Array:
        """Give each task the numbers of one."""
        xp = namespace(values)
        if self.boxes is None:
            return xp.concat([values] * self.n_tasks)
        sizes = [box.size // self.n_tasks for box in self.boxes]
        ends = np.cumsum(sizes).tolist()
        parts = [values[end - size : end] for end, size in zip(ends, sizes, strict=True)]
        return xp.concat([part for part in parts for _ in range(self.n_tasks)])
