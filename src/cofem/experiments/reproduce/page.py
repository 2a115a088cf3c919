"""Figures and one self-contained HTML page, made from the result files alone."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from cofem.experiments.reproduce.base import LABELS
from cofem.experiments.study.base import Check, Report, Study, open_results, result_path
from cofem.experiments.study.machine import machine_texts
from cofem.experiments.study.methods import MEANINGS
from cofem.experiments.study.plot import draw
from cofem.experiments.study.results import Rows, is_quick

PAGE = "report.html"

_STYLE = """
:root { --ink: #1b1f24; --soft: #57606a; --line: #d8dee4; --good: #116329; --bad: #a40e26; }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); max-width: 60rem; margin: 2rem auto;
  padding: 0 1.25rem; }
h1 { font-size: 1.7rem; line-height: 1.25; } h2 { font-size: 1.25rem; margin-top: 2.6rem;
  border-bottom: 1px solid var(--line); padding-bottom: .3rem; }
p.how, p.caption, footer { color: var(--soft); font-size: .92rem; }
p.caption { margin: 1.2rem 0 .3rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .88rem; width: 100%; }
th, td { text-align: left; padding: .35rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; background: #f6f8fa; }
td.figure { font-variant-numeric: tabular-nums; white-space: nowrap; }
img { max-width: 46rem; width: 100%; height: auto; display: block; margin: 1rem 0; }
.holds { color: var(--good); font-weight: 600; white-space: nowrap; }
.fails { color: var(--bad); font-weight: 600; white-space: nowrap; }
.open { color: var(--soft); white-space: nowrap; }
nav a { margin-right: 1rem; } details { font-size: .88rem; margin: .8rem 0; }
"""


def write_page(experiments: Iterable[Study], folder: Path) -> list[Path]:
    """Draw the figure of every experiment that has results in `folder` and write the page about all.

    Returns
    -------
    list of Path
        The files written, the page last.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    sections: list[str] = []
    claims: list[list[str]] = []
    checks: list[tuple[str, Check]] = []
    links: list[str] = []
    scales: set[bool] = set()
    found = [experiment for experiment in experiments if result_path(experiment, folder).exists()]
    names = [experiment.name for experiment in found]
    quickness = {experiment.name: is_quick(result_path(experiment, folder)) for experiment in found}
    results = {e.name: open_results(e, folder, quickness[e.name]).rows for e in found}
    for experiment in found:
        quick, rows = quickness[experiment.name], results[experiment.name]
        scales.add(quick)
        report = experiment.report(rows)
        report = replace(report, checks=[*report.checks, *experiment.compare(rows, results)])
        figures = [] if report.plot is None else draw(report.plot, folder / f"figure-{experiment.name}")
        written += figures
        title = _title(experiment)
        links.append(f'<a href="#{experiment.name}">{html.escape(_short(experiment))}</a>')
        claims += [[html.escape(_short(experiment)), *_claim_cells(check, quick)] for check in report.checks]
        checks += [(_short(experiment), check) for check in report.checks]
        sections.append(_section(experiment, title, report, rows, figures, quick))
    page = folder / PAGE
    page.write_text(_document(scales, links, _verdict(checks), claims, sections, names, folder))
    return [*written, page]


def _short(experiment: Study) -> str:
    return "table" if experiment.name == "table" else f"({experiment.name})"


def _title(experiment: Study) -> str:
    summary = experiment.summary[0].upper() + experiment.summary[1:]
    return summary if experiment.name == "table" else f"({experiment.name}) {summary}"


def _section(
    experiment: Study, title: str, report: Report, rows: Rows, figures: Sequence[Path], quick: bool
) -> str:
    parts = [f'<section id="{experiment.name}"><h2>{html.escape(title)}</h2>']
    parts.append(f'<p class="how">{html.escape(experiment.how)}</p>')
    picture = next((path for path in figures if path.suffix == ".png"), None)
    if picture is not None:
        data = base64.b64encode(picture.read_bytes()).decode()
        parts.append(f'<img alt="{html.escape(title)}" src="data:image/png;base64,{data}">')
    if report.checks:
        parts.append(
            _table(["claim", "judged by", "measured", ""], [_claim_cells(c, quick) for c in report.checks])
        )
    for table in report.tables:
        parts.append(f'<p class="caption">{html.escape(table.caption)}</p>')
        parts.append(
            _table(
                table.header,
                [
                    [html.escape(line[0]), *(f"\0{html.escape(cell)}" for cell in line[1:])]
                    for line in table.rows
                ],
            )
        )
    parts += [f"<p>{html.escape(remark)}</p>" for remark in report.remarks]
    parts.append(_methods(rows))
    parts.append(_unfinished(rows))
    parts.append(
        f'<p class="how">Every repetition: <code>{experiment.name}.csv</code>; '
        f"figure: <code>figure-{experiment.name}.svg</code>.</p></section>"
    )
    return "\n".join(part for part in parts if part)


def _methods(rows: Rows) -> str:
    items = [
        f"<li><b>{html.escape(LABELS[name])}</b>: {_code(MEANINGS[name])}</li>"
        for name in rows.methods
        if name in MEANINGS
    ]
    return f"<details><summary>What the methods are</summary><ul>{''.join(items)}</ul></details>"


def _unfinished(rows: Rows) -> str:
    """List the cells that were stopped, skipped or failed, with the reason; equal ones together."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if not row.measurement.reached:
            setting = ", ".join(f"{name} = {value}" for name, value in row.cell.setting.items())
            key = (LABELS[row.cell.method], row.measurement.note or "did not reach its target")
            reasons.setdefault(key, []).append(f"{setting}, seed {row.cell.seed}")
    if not reasons:
        return ""
    items = []
    for (method, note), cells in reasons.items():
        where = "; ".join(cells[:4]) + (f"; and {len(cells) - 4} more" if len(cells) > 4 else "")
        items.append(f"<li><b>{html.escape(method)}</b> ({html.escape(where)}): {html.escape(note)}</li>")
    count = sum(map(len, reasons.values()))
    return (
        f"<details open><summary>{count} cell{'s' * (count > 1)} did not get to the end</summary>"
        f"<ul>{''.join(items)}</ul></details>"
    )


def _claim_cells(check: Check, quick: bool) -> list[str]:
    style = {True: "holds", False: "fails", None: "open"}[check.holds]
    texts = [html.escape(text) for text in (check.what, check.target, check.measured)]
    scale = "<br>at this scale" if quick and check.holds is not None else ""
    return [*texts, f'<span class="{style}">{check.verdict}{scale}</span>']


def _verdict(checks: Sequence[tuple[str, Check]]) -> str:
    """Say in one sentence what holds and what does not.

    Examples
    --------
    >>> good, bad = Check("CoFEM is fast.", "", "", True), Check("Seq is slow.", "", "", False)
    >>> _verdict([("(b)", good), ("(f)", bad), ("(f)", Check("A GPU helps.", "", "", None))])
    'Of 2 claims measured, 1 holds; not confirmed: (f) Seq is slow; 1 was not measured (no GPU, or not run).'
    """
    judged = [(where, check) for where, check in checks if check.holds is not None]
    holding = sum(bool(check.holds) for _, check in judged)
    failing = [f"{where} {check.what.rstrip('.')}" for where, check in judged if not check.holds]
    count, verb = len(judged), "holds" if holding == 1 else "hold"
    text = f"Of {count} claims measured, {holding} {verb}"
    text += f"; not confirmed: {'; '.join(failing)}" if failing else ""
    left = len(checks) - len(judged)
    were = "was" if left == 1 else "were"
    return text + (f"; {left} {were} not measured (no GPU, or not run)." if left else ".")


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table of HTML cells; those that begin with NUL are figures, which do not break."""

    def cell(text: str) -> str:
        return f'<td class="figure">{text[1:]}</td>' if text.startswith("\0") else f"<td>{text}</td>"

    head = "".join(f"<th>{html.escape(text)}</th>" for text in header)
    body = "".join(f"<tr>{''.join(map(cell, line))}</tr>" for line in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _code(text: str) -> str:
    """Turn back quotes into code."""
    pieces = html.escape(text).split("`")
    return "".join(f"<code>{piece}</code>" if i % 2 else piece for i, piece in enumerate(pieces))


def _document(
    scales: set[bool],
    links: Sequence[str],
    verdict: str,
    claims: Sequence[Sequence[str]],
    sections: Sequence[str],
    names: Sequence[str],
    folder: Path,
) -> str:
    scale = {frozenset({True}): "quick", frozenset({False}): "paper"}.get(frozenset(scales), "mixed")
    note = (
        "The <b>quick</b> scale shows the shapes of the paper's figures at smaller sizes; the claims are "
        "about the paper's sizes (<code>--scale paper</code>)."
        if scale == "quick"
        else "The settings are those of the paper."
    )
    machine = "".join(f"<li>{html.escape(text)}</li>" for text in machine_texts(names, folder))
    summary = _table(["", "claim of the paper", "judged by", "measured", ""], claims) if claims else ""
    body = "\n".join(sections) or "<p>Nothing was measured yet: run <code>cofem reproduce all</code>.</p>"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Sparse Bayesian learning without covariance matrices: reproduction</title>
<style>{_STYLE}</style></head>
<body>
<h1>High-dimensional sparse Bayesian learning without covariance matrices: the experiments, reproduced</h1>
<p><b>{html.escape(verdict)}</b></p>
<p>Made by <code>cofem reproduce</code>, scale <b>{scale}</b>. {note} NRMSE is ‖mean − z‖ / ‖z‖ in percent.
One <i>application</i> is one product with the dictionary and one with its adjoint.</p>
<nav>{"".join(links)}</nav>
<h2>What the paper says, and what was measured</h2>
{summary}
{body}
<footer><h2>Machine and versions</h2><ul>{machine}</ul></footer>
</body></html>
"""
