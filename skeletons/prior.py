"""Skeleton of a prior: copy to `src/cofem/priors/<name>.py`, rename, replace the neighbourhoods.

CONTRIBUTING.md, "Add a prior", has the steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cofem._arrays import Array, namespace
from cofem.priors.base import Prior, capped_inverse


# Frozen, with every setting a field: a checkpoint recognises the prior by its fields.
@dataclass(frozen=True)
class Neighbourhood(Prior):
    """The prior variance of a coefficient is an average over its neighbourhood.

    ``alpha_j = (1 + 2 weight) / (m_j + weight (m_{j-1} + m_{j+1}))``; beyond the ends there is nothing.

    Parameters
    ----------
    weight : float
        Weight of each of the two neighbours, from 0 (independent) to 1.

    Examples
    --------
    >>> import numpy as np
    >>> Neighbourhood(0.5).precisions(np.array([0.0, 4.0, 0.0]), cap=1e12).tolist()
    [1.0, 0.5, 1.0]
    """

    weight: float = 0.25

    #: What the registry calls it.
    name: ClassVar[str] = "neighbourhood"
    #: True if the update maximises the evidence over free precisions: then steps may be extrapolated.
    extrapolates: ClassVar[bool] = False
    #: Whether the model is the same in any units of each column: not where coefficients are compared.
    free_of_units: ClassVar[bool] = False
    #: Whether several data vectors share their alpha.
    joins_tasks: ClassVar[bool] = False
    #: Array libraries that `precisions` works on, such as ("numpy", "torch"); None for any.
    libraries: ClassVar[tuple[str, ...] | None] = None

    def __post_init__(self) -> None:
        # Settings that no dictionary could make right.
        if not 0 <= self.weight <= 1:
            raise ValueError(f"weight must be from 0 to 1, got {self.weight!r}")

    def check(self, n_columns: int) -> None:
        """Refuse a dictionary that the settings do not fit; every number of columns fits here.

        Examples
        --------
        >>> Neighbourhood().check(8)
        """

    def precisions(self, second_moment: Array, cap: float) -> Array:
        """M-step: alpha, at most `cap`, from second moments of shape (D,), which are left alone.

        Scale second moments and alpha scales inversely: they come in units of the fit, not of the user.

        Examples
        --------
        >>> import numpy as np
        >>> Neighbourhood(0.0).precisions(np.array([2.0, 0.0]), cap=100.0).tolist()
        [0.5, 100.0]
        """
        average = namespace(second_moment).asarray(second_moment, copy=True)
        average[1:] += self.weight * second_moment[:-1]
        average[:-1] += self.weight * second_moment[1:]
        return capped_inverse(average / (1 + 2 * self.weight), cap)
