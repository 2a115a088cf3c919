"""`cofem.compare`: which prior predicts data best that were held out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cofem._arrays import as_array, without_gradients
from cofem._fit import prepare_choice
from cofem.inference.analysis.choice import Broken
from cofem.inference.checkpoint import Keeper
from cofem.inference.choice import Jury, search
from cofem.inference.comparison import Comparison
from cofem.inference.prepare import Data
from cofem.inference.record import Callback, FitStopped
from cofem.inference.settings import Settings, check_callback, check_rng, is_auto
from cofem.inference.stages import Runner
from cofem.priors import Prior


@without_gradients
def compare(  # noqa: PLR0913 (public)
    Phi: Any,
    y: Any,
    priors: Sequence[Prior] | None = None,
    *,
    noise_std: Any = "learn",
    method: Any = "auto",
    nonnegative: bool = False,
    sample_weight: Any = None,
    rng: int | np.random.Generator | None = 0,
    callback: Callback | None = None,
    progress: bool = False,
    checkpoint: Any = None,
    checkpoint_every: float | str | None = None,
    resume: Any = None,
) -> Comparison:
    """Compare priors by the log density of data that are held out of the fits.

    A tenth of the data is held out of a fit, up to five times in turn (ten times where there are fewer than
    100), the same tenths for every prior. Densities are those of each datum under its own prediction, with
    its variance.

    Parameters
    ----------
    Phi, y : as for `cofem.fit`
        Dictionary and data, of shape (N,) or (N, L).
    priors : sequence of Prior, optional
        What to compare. By default what ``cofem.fit(..., prior="auto")`` chooses from: some are then left
        out, or judged by fewer data, once they are plainly worse.
    noise_std, method, nonnegative, sample_weight : as for `cofem.fit`
        The noise is learned for each prior by itself.
    rng, callback, progress, checkpoint, checkpoint_every, resume : as for `cofem.fit`
        The same seed gives the same table, up to the seconds. A comparison that was interrupted goes on from
        its checkpoint.

    Returns
    -------
    Comparison
        A table with a row for each prior; ``.prior`` is the best one.

    Examples
    --------
    >>> import numpy as np, cofem
    >>> rng = np.random.default_rng(0)
    >>> Phi = rng.standard_normal((60, 30))
    >>> y = Phi @ rng.standard_normal(30) + 0.5 * rng.standard_normal(60)  # nothing is sparse here
    >>> table = cofem.compare(Phi, y, [cofem.Independent(), cofem.Power(2)], rng=0)
    >>> table.prior.label, len(table.rows)
    ('Power(2)', 2)
    """
    settings = Settings.checked(method=method, prior="auto", nonnegative=nonnegative, max_iter=None, tol=None)
    given = None if priors is None else _check_priors(priors)
    keeper = Keeper(check_rng(rng), checkpoint, checkpoint_every, resume)
    try:
        runner = Runner(keeper, check_callback(callback), progress)
        array = as_array(y, "y")
        data = Data(Phi, array if array.ndim == 2 else y, noise_std, sample_weight).stacked()
        prepared, plan = prepare_choice(data, settings, runner)
        problem = prepared.problem
        if problem.n_rows < 2:
            raise ValueError("priors cannot be compared by a single datum")
        for prior in given or ():
            prior.check(problem.n_columns)
            prior.check_arrays(problem.y)
        jury = Jury(problem, plan, runner, given is None, is_auto(method))
        try:
            if given is None:
                search(jury, prepared.operator)
            for prior in given or ():
                jury.judge(prior)
        except (Broken, FitStopped) as end:
            if not jury.judged:
                raise ValueError(f"no prior could be judged: {end}") from end
        return jury.comparison()
    finally:
        keeper.close()


def _check_priors(priors: Any) -> list[Prior]:
    if isinstance(priors, Prior) or not isinstance(priors, Sequence) or len(priors) == 0:
        raise TypeError(f"priors must be a list of priors, got {priors!r}")
    for prior in priors:
        if not isinstance(prior, Prior):
            raise TypeError(f"priors must hold priors such as cofem.Power(0.5), got {prior!r}")
    return list(priors)
