"""The methods that benchmarks compare, by the label they have in the results."""

from __future__ import annotations

from typing import Any

import cofem

METHODS: dict[str, Any] = {
    "default": cofem.CoFEM(),
    "auto": "auto",
    "paper": cofem.CoFEM.paper(),
    # The joint tolerance with which Algorithm 1 was fastest on the DCT problems.
    "paper 2e-5": cofem.CoFEM.paper(cg_tol=2e-5),
    # One with which it does not stand still on large dense dictionaries.
    "paper 1e-9": cofem.CoFEM.paper(cg_tol=1e-9),
    "probes": cofem.CoFEM(diagonal="rademacher", probes=20),
    "irls": cofem.IRLS(),
    "em": cofem.EM(),
    "amp": cofem.AMP(),
    "vi": cofem.VI(),
    "seq": cofem.Seq(),
}

#: What the labels mean, for the reports.
MEANINGS = {
    "default": "`cofem.CoFEM()`",
    "auto": '`cofem.fit(..., method="auto")`',
    "authors": "the code that the paper's authors have published",
    "auto prior": '`prior="auto"`',
    "default prior": "the independent prior",
    "with": "with the structure of the data known",
    "without": "without it",
    "paper": "`cofem.CoFEM.paper()`, Algorithm 1 of the paper to the letter",
    "paper 2e-5": "`cofem.CoFEM.paper(cg_tol=2e-5)`, Algorithm 1 with the joint tolerance with which it was "
    "fastest on the DCT problems",
    "paper 1e-9": "`cofem.CoFEM.paper(cg_tol=1e-9)`, Algorithm 1 with a smaller joint tolerance",
    "probes": '`cofem.CoFEM(diagonal="rademacher", probes=20)`',
    "irls": "`cofem.IRLS()`, exact EM through an N x N matrix",
    "em": "`cofem.EM()`, exact EM through a D x D matrix",
    "amp": "`cofem.AMP()`, EM with ten steps of approximate message passing in each E-step",
    "vi": "`cofem.VI()`, variational inference without inverses",
    "seq": "`cofem.Seq()`, adds, re-estimates and deletes coefficients one by one",
}
