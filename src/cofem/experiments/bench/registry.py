"""The benchmarks by name."""

from __future__ import annotations

from collections.abc import Sequence

from cofem.experiments.bench.authors import Authors
from cofem.experiments.bench.coherent import Coherent
from cofem.experiments.bench.coverage import Coverage
from cofem.experiments.bench.dct_time import DCTTime
from cofem.experiments.bench.dense_time import DenseTime
from cofem.experiments.bench.distributed import OnCluster
from cofem.experiments.bench.endurance import Endurance
from cofem.experiments.bench.everyday import Everyday
from cofem.experiments.bench.genotypes import WeakSignals
from cofem.experiments.bench.image import Image
from cofem.experiments.bench.kinds import Kinds
from cofem.experiments.bench.learned_coverage import LearnedCoverage
from cofem.experiments.bench.memory import Memory
from cofem.experiments.bench.noise import LearnedNoise
from cofem.experiments.bench.pictures import Pictures
from cofem.experiments.bench.priors import Priors
from cofem.experiments.bench.profile import Profile
from cofem.experiments.bench.regression import Regression
from cofem.experiments.bench.regression_sets import RegressionSets
from cofem.experiments.bench.scaling import Scaling
from cofem.experiments.bench.spgl1 import SPGL1
from cofem.experiments.bench.success import Success
from cofem.experiments.study.base import Study

BENCHMARKS: dict[str, Study] = {
    benchmark.name: benchmark
    for benchmark in (
        DCTTime(),
        Authors(),
        DenseTime(),
        Profile(),
        Memory(),
        Scaling(),
        Everyday(),
        Image(),
        Pictures(),
        SPGL1(),
        Success(),
        Kinds(),
        Coherent(),
        Regression(),
        RegressionSets(),
        LearnedNoise(),
        Coverage(),
        LearnedCoverage(),
        Priors(),
        WeakSignals(),
        OnCluster(),
        Endurance(),
    )
}


def get_benchmarks(names: Sequence[str]) -> list[Study]:
    """Return benchmarks by name, or all if none is named."""
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        raise ValueError(f"no benchmark is called {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    return [BENCHMARKS[name] for name in names] if names else list(BENCHMARKS.values())
