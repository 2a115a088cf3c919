"""The experiments by name."""

from __future__ import annotations

from cofem.experiments.reproduce.accuracy import Accuracy
from cofem.experiments.reproduce.against_seq import AgainstSeq
from cofem.experiments.reproduce.convergence import Convergence
from cofem.experiments.reproduce.growth import Growth
from cofem.experiments.reproduce.step_time import StepTime
from cofem.experiments.study.base import Study

EXPERIMENTS: dict[str, Study] = {
    experiment.name: experiment
    for experiment in (
        Accuracy(),
        StepTime("b", "dense", "paper", quick=(8, 9, 10, 11)),
        Convergence("c", "dense", "paper", quick=9, powers=(13, 15)),
        StepTime("d", "dct", "paper 2e-5", quick=(8, 9, 10, 11)),
        Convergence("e", "dct", "paper 2e-5", quick=11),
        AgainstSeq(),
        Growth(),
    )
}


def get_experiments(name: str) -> list[Study]:
    """Return one experiment by name, or all of them for ``"all"``."""
    if name == "all":
        return list(EXPERIMENTS.values())
    if name not in EXPERIMENTS:
        raise ValueError(f"no experiment is called {name!r}; there are {', '.join(EXPERIMENTS)} and all")
    return [EXPERIMENTS[name]]
