"""Reports in markdown, made from the result files alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from cofem.experiments.study.base import Report, Study, open_results, result_path
from cofem.experiments.study.machine import machine_texts
from cofem.experiments.study.methods import MEANINGS
from cofem.experiments.study.plot import draw
from cofem.experiments.study.results import Rows, is_quick

_QUICK = "**Quick run**: a shortened sweep for a first look. The targets are about the full one."

_MEASURED = """\
All figures are medians over the repeats unless a table says otherwise; a repeat is a problem and a fit
with its own seed, and methods that are compared run one after the other on the same problem. A ratio is
the median over the repeats of the ratio on one problem. Times are wall-clock times from the call of
`cofem.fit` to the end of the first outer step whose mean is at the target, without the time spent on
measuring the error. One *application* is one product with Phi and one with its adjoint. NRMSE is
`||mean - z|| / ||z||` in percent. A fit that exceeds the time limit stops at the end of its outer step;
a ratio is then a lower bound, marked `>`. Memory is measured in a process of its own.
"""

_CHECKS = ("target", "wanted", "measured", "")


class Part(NamedTuple):
    """What the joint report needs of one benchmark."""

    benchmark: Study
    report: Report
    body: str
    quick: bool


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table.

    Examples
    --------
    >>> print(markdown_table(["D", "time"], [["2^12", "1 s"]]))
    | D | time |
    | --- | --- |
    | 2^12 | 1 s |
    """
    lines = [list(header), ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def write_reports(benchmarks: Iterable[Study], folder: Path) -> list[Path]:
    """Write the report of every benchmark that has results in `folder`, and the one that joins them.

    Returns
    -------
    list of Path
        The files written.
    """
    written: list[Path] = []
    parts: dict[str, Part] = {}
    for benchmark in benchmarks:
        path = result_path(benchmark, folder)
        if not path.exists():
            continue
        quick = is_quick(path)
        rows = open_results(benchmark, folder, quick).rows
        report = benchmark.report(rows)
        plots = [] if report.plot is None else draw(report.plot, folder / benchmark.name)
        body = _body(benchmark, report, rows, bool(plots))
        text = [f"# {benchmark.name}: {benchmark.summary}", _QUICK if quick else "", benchmark.how]
        if report.checks:
            text.append(markdown_table(_CHECKS, _check_lines(report, quick)))
        file = folder / f"{benchmark.name}.md"
        file.write_text(_paragraphs([*text, body]))
        written += [file, *plots]
        parts[benchmark.name] = Part(benchmark, report, body, quick)
    readme = folder / "README.md"
    folder.mkdir(parents=True, exist_ok=True)
    readme.write_text(_joined(parts, folder))
    return [*written, readme]


def _body(benchmark: Study, report: Report, rows: Rows, has_plot: bool) -> str:
    """Return tables, plot and remarks of a benchmark."""
    parts: list[str] = []
    for table in report.tables:
        parts += [table.caption, markdown_table(table.header, table.rows)]
    if has_plot:
        parts.append(f"![{benchmark.summary}]({benchmark.name}.png)")
    parts += [*report.remarks, _method_list(rows)]
    trouble = [row for row in rows if not row.measurement.reached]
    if trouble:
        parts += ["Cells that did not get there:", "\n".join(f"- {row}" for row in trouble)]
    return _paragraphs(parts)


def _check_lines(report: Report, quick: bool) -> list[list[str]]:
    mark = " (quick)" if quick else ""
    return [[check.what, check.target, check.measured, check.verdict + mark] for check in report.checks]


def _paragraphs(parts: Iterable[str]) -> str:
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def _method_list(rows: Rows) -> str:
    return "\n".join(f"- *{name}*: {MEANINGS[name]}" for name in rows.methods if name in MEANINGS)


def _joined(parts: dict[str, Part], folder: Path) -> str:
    if not parts:
        return "# Benchmark results\n\nNothing was measured yet: run `cofem bench`.\n"
    quick = any(part.quick for part in parts.values())
    text = [
        "# Benchmark results",
        _QUICK if quick else "",
        "\n".join(f"- {text}." for text in machine_texts(list(parts), folder)),
        _MEASURED,
    ]
    checks = [
        [f"[{name}]({name}.md)", *line]
        for name, part in parts.items()
        for line in _check_lines(part.report, part.quick)
    ]
    if checks:
        text += ["## Targets", markdown_table(["benchmark", *_CHECKS], checks)]
    for name, part in parts.items():
        text += [f"## {name}: {part.benchmark.summary}", part.benchmark.how, part.body]
    return _paragraphs(text)
