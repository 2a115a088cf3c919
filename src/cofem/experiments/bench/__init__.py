"""The benchmark of the library: `cofem bench`.

A benchmark is one module with one row in `registry`. `runner` measures it cell by cell into a CSV file,
`report` makes tables and plots from that file alone.
"""

from cofem.experiments.bench.base import Benchmark, Options
from cofem.experiments.bench.registry import BENCHMARKS, get_benchmarks
from cofem.experiments.bench.report import write_reports
from cofem.experiments.bench.runner import Run

__all__ = ["BENCHMARKS", "Benchmark", "Options", "Run", "get_benchmarks", "write_reports"]
