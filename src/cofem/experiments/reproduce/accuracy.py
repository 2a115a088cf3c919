"""Experiment (a): error against undersampling, dense dictionary."""

from __future__ import annotations

import math

from cofem.experiments import problems
from cofem.experiments.reproduce.base import (
    LABELS,
    ORDER,
    bands_over,
    claim,
    series_over,
    settings_of,
)
from cofem.experiments.study.base import Check, Options, Report, Study, Table, grid, number
from cofem.experiments.study.measure import timed_fit
from cofem.experiments.study.methods import METHODS
from cofem.experiments.study.plot import Plot
from cofem.experiments.study.results import Cell, Measurement, Rows, Value

STEPS = 50
COMPARED = ("em", "irls", "amp", "vi", "seq", "paper", "auto")
#: Errors count as similar within this factor.
SIMILAR = 1.25
#: Mean NRMSE of EM in percent below which it counts as recovering; beyond, chance decides.
RECOVERED = 10.0


class Accuracy(Study):
    """NRMSE over the undersampling factor."""

    name = "a"
    summary = "recovery accuracy, dense dictionary: NRMSE against the undersampling factor"
    how = (
        "D = 1024 (quick: 256), N = D / f, 0.04 D spikes of +-1, Phi from N(0, 1), noise 0.005 known, 25 "
        "repetitions (quick: 2). EM, IRLS, AMP, VI and Algorithm 1 (U = 400, K = 20) take 50 steps, AMP ten "
        "inner ones in each; Seq and this library's default stop by themselves. Lines are means, bands run "
        "from the smallest to the largest repetition."
    )
    setting_columns = ("D", "f")

    def cells(self, options: Options) -> list[Cell]:
        """Every factor, every repetition, every method."""
        D, repeats = (256, 2) if options.quick else (1024, 25)
        sweep: list[dict[str, Value]] = [{"D": D, "f": f} for f in range(1, 9)]
        return grid(sweep, COMPARED, options.seeds or repeats, options.first_seed)

    def measure(self, cell: Cell, options: Options, earlier: Rows) -> Measurement:
        """Fit once."""
        case = problems.dense(int(cell.setting["D"]), f=int(cell.setting["f"]), seed=cell.seed)
        return timed_fit(
            case,
            METHODS[cell.method],
            seed=cell.seed,
            time_limit=options.time_limit,
            checkpoints=options.checkpoints,
            **settings_of(cell.method, STEPS),
        )

    def report(self, rows: Rows) -> Report:
        """Mean errors by factor, and what the paper says about them."""
        factors = rows.values("f")
        lines = [
            [LABELS[method], *(number(mean_error(rows.where(method, f=f)), " %") for f in factors)]
            for method in rows.methods
        ]
        plot = Plot(
            series_over(rows, "f", mean_error),
            "undersampling factor f = D / N",
            "NRMSE, %",
            "(a) dense dictionary: accuracy",
            log_x=False,
            bands=bands_over(rows, "f", "nrmse"),
            order=ORDER,
        )
        table = Table("Mean NRMSE:", ["method", *(f"f = {f}" for f in factors)], lines)
        return Report([table], self._claims(rows), plot)

    def _claims(self, rows: Rows) -> list[Check]:
        factors = [f for f in rows.values("f") if mean_error(rows.where("em", f=f)) < RECOVERED]

        def ratios(method: str, among: list[int]) -> dict[int, float]:
            pairs = {
                f: (mean_error(rows.where(method, f=f)), mean_error(rows.where("em", f=f))) for f in among
            }
            return {f: ours / em for f, (ours, em) in pairs.items() if not math.isnan(ours / em)}

        worst = {
            LABELS[method]: max(((max(r, 1 / r), f, r) for f, r in found.items()), default=None)
            for method in ("irls", "amp", "paper", "auto")
            for found in [ratios(method, factors)]
        }
        texts = [f"{label} {w[2]:.2f}x EM's at f = {w[1]}" for label, w in worst.items() if w]
        judged = [w for label, w in worst.items() if w and label != LABELS["auto"]]
        vi = ratios("vi", [f for f in factors if f >= 2])
        seq_low = ratios("seq", [f for f in factors if f <= 4])
        seq_high = ratios("seq", [f for f in rows.values("f") if f > 4])
        return [
            claim(
                "EM, IRLS, AMP and CoFEM have similar performance.",
                f"mean NRMSE within a factor {SIMILAR} of EM's wherever EM recovers (below {RECOVERED:g} %)",
                "largest distance: " + ", ".join(texts),
                all(w[0] <= SIMILAR for w in judged) if judged else None,
            ),
            claim(
                "VI performs poorly due to optimization of a biased objective.",
                "at least twice EM's mean NRMSE at every f >= 2 where EM recovers",
                f"{min(vi.values()):.1f} to {max(vi.values()):.1f} times EM's" if vi else "–",
                min(vi.values()) >= 2 if vi else None,
            ),
            claim(
                "The sequential algorithm also deteriorates quickly for f > 4.",
                "mean NRMSE at some f > 4 at least twice EM's, and at f <= 4 less than twice",
                f"up to {max(seq_low.values()):.1f} times EM's for f <= 4, "
                f"up to {max(seq_high.values()):.1f} times beyond"
                if seq_low and seq_high
                else "–",
                max(seq_high.values()) >= 2 > max(seq_low.values()) if seq_low and seq_high else None,
            ),
        ]


def mean_error(rows: Rows) -> float:
    """Return the mean NRMSE; NaN if nothing was measured."""
    errors = [row.measurement.nrmse for row in rows if not math.isnan(row.measurement.nrmse)]
    return sum(errors) / len(errors) if errors else math.nan
