"""How much of a posterior's variance in analysis form lies where data are silent."""

from __future__ import annotations

import numpy as np

from cofem._arrays import in_precision, inner, standard_normal, total
from cofem.posterior.posterior import Posterior
from cofem.status import Caution

#: Draws that the share is estimated from: on 16 x 16 pixels, where few directions have most of the variance,
#: it was within 0.11 of the exact one in eight of eight cases.
DRAWS = 8
#: Share that is pointed out, and share that is a reason for doubt. Pictures of 40 x 40 pixels from 500 random
#: sums had 0.66 and 0.70, and 95 % intervals that held 94 %; from a third of their cosines 0.95 and 0.96, and
#: intervals that held 25 and 41 %.
MOST, NEARLY_ALL = 0.5, 0.9


def silent_share(post: Posterior) -> float:
    r"""Return the share of the variance that comes from the prior, where data do not determine the unknown.

    With :math:`\Sigma^{-1} = \beta\Phi^H\Phi + Q`, the variance is the sum of what noise in the data makes of
    it and what they leave open, :math:`\mathrm{tr}\,\Sigma = \beta\,\mathrm{tr}\,\Sigma\Phi^H\Phi\Sigma +
    \mathrm{tr}\,\Sigma Q\Sigma`.

    Examples
    --------
    >>> import numpy as np, cofem
    >>> from cofem.operators import Gradient
    >>> post = cofem.fit(np.eye(30)[:20], np.ones(20), noise_std=0.1, analysis=Gradient(30), rng=0)
    >>> 0 < silent_share(post) < 1
    True
    """
    solver = post._analysis_solver("nothing")
    like, rng = in_precision(post.mean, "float64"), np.random.default_rng(0)
    noise = standard_normal((DRAWS, solver.phi.shape[0]), like, rng) * post.noise_std
    moved = solver.for_count(DRAWS)(v=noise)
    whole = total(post.variance) / post.scale
    share = inner(moved, moved) / DRAWS / whole if np.isfinite(whole) and whole > 0 else 1.0
    return 1.0 - min(share, 1.0)


def about_silence(post: Posterior) -> list[str]:
    """Say so where data that are sums over places leave most of the variance to the prior.

    Where each datum sees one place, those held out stand for those that none sees.
    """
    operator = post.operator
    if post.analysis is None or operator is None or operator.facts.one_per_row:
        return []
    share = silent_share(post)
    if not share > MOST:
        return []
    text = (
        f"{share:.0%} of the posterior variance lies where the data are silent: there post.std is what the "
        "prior expects, and no held-out data could check it"
    )
    fewer = operator.shape[0] < operator.shape[1]
    return [Caution(text) if fewer and share > NEARLY_ALL else text]
