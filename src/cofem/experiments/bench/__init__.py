"""The benchmark of the library: `cofem bench`.

A benchmark is one module with one row in `registry`. `runner` measures it cell by cell into a CSV file,
`report` makes tables and plots from that file alone.
"""

from cofem.experiments.bench.registry import BENCHMARKS, get_benchmarks
from cofem.experiments.bench.report import write_reports
from cofem.experiments.study.base import Options, Study
from cofem.experiments.study.runner import Run

__all__ = ["BENCHMARKS", "Options", "Run", "Study", "get_benchmarks", "write_reports"]
