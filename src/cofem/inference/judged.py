"""A prior, and what data that were held out of fits said of it."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from cofem.inference.loop import Ended
from cofem.inference.prediction import Errors
from cofem.operators import Operator
from cofem.priors import Prior

#: Shares of the posterior's spread that are tried for the variances of predictions, since those of
#: coefficients on their way to zero are far too large; and noise variances, relative to what was found.
SHARES, LEVELS = (0.0, 0.1, 0.3, 1.0), np.geomspace(0.25, 4.0, 17)


class Judged(NamedTuple):
    """A prior, and what each part of the data that was held out said.

    Attributes
    ----------
    prior, label : Prior and str
        The prior, and the same in words.
    errors : list of Errors
        Of each part, task by task.
    noise : list of float
        Noise variances that were found.
    ends : list of Ended
        Where the fits ended.
    known : bool
        Whether the noise is known.
    cost : tuple of two float
        Applications and seconds.
    dropped : bool
        Whether it was plainly worse than another after some parts.
    analysis : Operator or None
        The analysis operator whose rows the prior is for.
    start : int or None
        Number of the prior that its fits go on from.
    penalty : float
        What learning the operator from the same data has added to the log density of a datum.
    """

    prior: Prior
    label: str
    errors: list[Errors]
    noise: list[float]
    ends: list[Ended]
    known: bool
    cost: tuple[float, float]
    dropped: bool = False
    analysis: Operator | None = None
    start: int | None = None
    penalty: float = 0.0

    @property
    def noise_var(self) -> float:
        """The noise variance that the parts agree on."""
        return float(np.median(self.noise))

    @property
    def to_fit(self) -> tuple[Prior, float]:
        """The prior and the noise variance for a fit to all data.

        The variances of a mode say nothing of what it gets wrong. So the noise is the one at which what was
        held out is most likely, with the penalty that the parts were fitted with.
        """
        if self.known or not self.prior.of_mode:
            return self.prior, self.noise_var
        levels = self.noise_var * LEVELS
        noise_var = float(levels[np.argmax(joined(self.errors).log_density(levels))])
        return self.prior.at_noise((noise_var / self.noise_var) ** 0.5), noise_var

    def densities(self, first: int | None = None) -> np.ndarray:
        """Return the log density of each datum in the first parts, at the best share and noise for them."""
        whole = joined(self.errors[:first])
        levels = self.noise_var * (np.ones(1) if self.known else LEVELS)
        found = np.array([whole.log_density(levels, share) for share in SHARES])
        share, level = np.unravel_index(np.argmax(found), found.shape)
        return whole.log_densities(levels[level], SHARES[share]) - self.penalty

    @property
    def outside(self) -> float:
        """Share of the data outside of their 90 % intervals."""
        count = sum(part.squares.size for part in self.errors)
        return sum(part.outside(self.noise_var, 0.9) for part in self.errors) / count


def joined(errors: list[Errors]) -> Errors:
    """Return the errors of several parts in a row."""
    squares = [part.squares.ravel() for part in errors]
    spread = [np.broadcast_to(part.spread, part.squares.shape).ravel() for part in errors]
    return replace(errors[0], squares=np.concatenate(squares), spread=np.concatenate(spread))


def together(errors: list[Errors]) -> Errors:
    """Return the errors of several tasks as those of one problem."""
    if len(errors) == 1:
        return errors[0]
    squares, spread = (np.stack([getattr(one, name) for one in errors]) for name in ("squares", "spread"))
    return replace(errors[0], squares=squares, spread=spread)
