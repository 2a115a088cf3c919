"""Second tries to find a signal, from another noise or with fewer data held out: when they are given up."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from cofem.status import Status, StatusCode

#: Steps after which a second try that leads nowhere shows: what the noise rule must say by then, relative to
#: what is wanted, and to what it said at an earlier step unless it is far below the former. (Of 206 tries
#: that found the signal 201 passed, of 481 that did not 372 were given up, after 15 steps on average. Spikes
#: of one size hardly show before they are found: with 0.8, 15 in place of 4 of 123 were lost.)
PROMISING = {15: 1.25, 30: 0.8}
FALLS, FAR_BELOW = {12: (6, 1.02), 15: (10, 0.96), 20: (15, 0.9)}, 0.75
#: Step after which a try leads nowhere that predicts what was held out no better than nothing would: of 60
#: tries that found the signal (paper's problems at f = 4 to 6), none was above 0.9 of that by then.
BETTER_THAN_NOTHING = 4
#: Steps at which it is asked, and by what name the history has the answer.
ASKED, SAID = (
    frozenset({BETTER_THAN_NOTHING}) | set(PROMISING) | set(FALLS) | {before for before, _ in FALLS.values()},
    "noise_found",
)
_GIVEN_UP = "given up"


class SecondTry(NamedTuple):
    """What is asked of a second try while it runs.

    Attributes
    ----------
    wanted : float
        The noise variance that it must be on the way to.
    nothing : float
        What the rule says of predictions that are no better than none: the power of what was held out.

    Examples
    --------
    >>> rows = [{} for step in range(15)]
    >>> said = iter([0.9, 0.9, 0.8, 0.79, 0.78])  # after 4, 6, 10, 12 and 15 steps
    >>> [SecondTry(1.0).is_promising(rows[:step], lambda: next(said)) for step in (4, 6, 10, 11, 12, 15)]
    [True, True, True, True, True, False]
    """

    wanted: float
    nothing: float = math.inf

    def is_promising(self, rows: Sequence[dict[str, Any]], says: Callable[[], float]) -> bool:
        """Tell whether the try has come as far as it must.

        Parameters
        ----------
        rows : sequence of dict
            Its history, a row for each step; what is said now is noted in the last one.
        says : callable
            Returns the noise variance that the noise rule would set now.
        """
        now = len(rows)
        if now not in ASKED:
            return True
        said = rows[-1][SAID] = says()
        if now == BETTER_THAN_NOTHING:
            return said < self.nothing
        before, share = FALLS.get(now, (now, 1.0))
        falls = said <= max(share * float(rows[before - 1][SAID]), FAR_BELOW * self.wanted)
        return falls and said <= PROMISING.get(now, math.inf) * self.wanted


def given_up(steps: int) -> Status:
    """Return how a try that leads nowhere ends."""
    return Status(StatusCode.MAX_ITER, f"{_GIVEN_UP} after {steps} steps: no sign of a signal")


def was_given_up(status: Status) -> bool:
    """Tell whether a run ended in this way.

    Examples
    --------
    >>> was_given_up(given_up(15)), was_given_up(Status(StatusCode.MAX_ITER, "stopped"))
    (True, False)
    """
    return status.message.startswith(_GIVEN_UP)
