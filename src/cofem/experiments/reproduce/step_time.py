"""Experiments (b) and (d): time of 30 EM iterations against D, dense and structured dictionary."""

from __future__ import annotations

from collections.abc import Mapping

from cofem.experiments.reproduce.base import (
    LABELS,
    ORDER,
    Estimates,
    claim,
    fitted_as,
    gpu_claim,
    settings_of,
    skip_if_a_step_is_too_slow,
)
from cofem.experiments.study.base import (
    Check,
    Options,
    Report,
    Study,
    Table,
    grid,
    number,
    power,
    sizes,
)
from cofem.experiments.study.fresh import MEMORY_FIGURES, Request, fit_in_fresh_process
from cofem.experiments.study.plot import Plot
from cofem.experiments.study.results import Cell, Measurement, Rows

STEPS = 30
#: Times count as the same within this factor.
SAME_TIME = 2.0


class StepTime(Study):
    """Time of 30 outer steps, each fit in a process of its own."""

    setting_columns = ("D",)
    figures = MEMORY_FIGURES

    def __init__(self, name: str, problem: str, algorithm: str, quick: tuple[int, ...]) -> None:
        self.name = name  # type: ignore[misc]
        self.problem = problem
        #: Label of Algorithm 1 with the tolerance for this problem.
        self.algorithm = algorithm
        self.quick_sizes = quick
        kind = "dense" if problem == "dense" else "structured (DCT)"
        self.summary = f"computation time, {kind} dictionary: 30 EM iterations against D"  # type: ignore[misc]
        signal = (
            "spikes of +-1, Phi from N(0, 1)"
            if problem == "dense"
            else "N(0, 1) spikes, inverse DCT and mask"
        )
        self.how = (  # type: ignore[misc]
            f"N = D / 4, 0.04 D {signal}, noise 0.005 known, float64, 30 outer steps in a process of its "
            "own. U = 400 and K = 20 for Algorithm 1 at all D"
            + (", its joint tolerance 1e-8, and 1e-9 at D = 2^15" if problem == "dense" else "")
            + ". A fit that exceeds the time limit is stopped "
            "at the end of a step, and its time is an estimate, marked ≈ and hollow in the figure: by the "
            "number of steps, or for Algorithm 1, whose steps get longer, by the applications of its largest "
            "fit that came to its end. One that does not fit into memory says so."
        )

    def cells(self, options: Options) -> list[Cell]:
        """Every size and every EM-like method."""
        sweep = sizes(*(self.quick_sizes if options.quick else range(9, 16)))
        methods = ("irls", "amp", self.algorithm, "default", "em")
        return grid(sweep, methods, options.seeds or 1, options.first_seed)

    def measure(self, cell: Cell, options: Options, earlier: Rows) -> Measurement:
        """Take 30 steps."""
        skip_if_a_step_is_too_slow(cell, earlier)
        request = Request(
            self.problem,
            {"D": cell.setting["D"]},
            fitted_as(cell.method, self.problem, int(cell.setting["D"])),
            cell.seed,
            time_limit=options.time_limit,
            checkpoints=str(options.checkpoints) if options.checkpoints else None,
            **({"max_iter": STEPS, "tol": 0.0} | settings_of(cell.method, STEPS)),
        )
        return fit_in_fresh_process(request)

    def report(self, rows: Rows) -> Report:
        """Give times and memory by size."""
        Ds, times = rows.values("D"), Estimates(rows, STEPS)
        lines = [[LABELS[method], *(times.text(method, D) for D in Ds)] for method in rows.methods]
        memory = [
            [LABELS[method], *(number(rows.where(method, D=D).median("added_mb"), " MB") for D in Ds)]
            for method in rows.methods
        ]
        header = ["method", *(power(D) for D in Ds)]
        every, estimated = times.series()
        plot = Plot(
            every,
            "D",
            "seconds for 30 iterations",
            f"({self.name}) {'dense' if self.problem == 'dense' else 'structured'} dictionary: time",
            order=ORDER,
            hollow=estimated,
        )
        tables = [
            Table("Time of 30 iterations:", header, lines),
            Table("Memory that the fit added at its peak:", header, memory),
        ]
        claims = self._dense_claims(rows) if self.problem == "dense" else self._structured_claims(rows)
        return Report(tables, claims, plot)

    @staticmethod
    def _ratio(rows: Rows, slow: str, fast: str) -> list[tuple[int, float]]:
        times = Estimates(rows, STEPS)
        return [(D, times.seconds(slow, D) / times.seconds(fast, D)) for D in times.common((slow, fast))]

    def _dense_claims(self, rows: Rows) -> list[Check]:
        against_em = self._ratio(rows, "em", self.algorithm)
        others = {name: self._ratio(rows, self.algorithm, name) for name in ("irls", "amp")}
        slower = {name: found[-1][1] for name, found in others.items() if found}
        closing = {name: (found[0], found[-1]) for name, found in others.items() if len(found) > 1}
        return [
            claim(
                "CoFEM is faster than EM for large D.",
                "time of EM / CoFEM above 1 at the largest D at which both have a time",
                _at_largest("EM / CoFEM", against_em),
                against_em[-1][1] > 1 if against_em else None,
            ),
            claim(
                "IRLS and AMP take slightly less time for the values of D considered.",
                "CoFEM takes more time than both at the largest common D",
                ", ".join(f"CoFEM / {LABELS[name]} = {value:.1f}" for name, value in slower.items()) or "–",
                all(value > 1 for value in slower.values()) if slower else None,
            ),
            claim(
                "The gap with CoFEM closes for large D.",
                "both ratios are smaller at the largest D than at the smallest",
                ", ".join(
                    f"CoFEM / {LABELS[name]}: " + ", ".join(f"{r:.1f} at {power(D)}" for D, r in ends)
                    for name, ends in closing.items()
                )
                or "–",
                all(high[1] < low[1] for low, high in closing.values()) if closing else None,
            ),
            gpu_claim("A GPU accelerates CoFEM further; the other algorithms do not fit on it at D = 2^15."),
        ]

    def compare(self, rows: Rows, others: Mapping[str, Rows]) -> list[Check]:
        """Judge the claim of (d) that needs the times of (b)."""
        if self.problem == "dense":
            return []
        dense = others.get("b", Rows())
        ratios = {}
        for method in ("em", "irls", "amp"):
            structured, full = Estimates(rows, STEPS), Estimates(dense, STEPS)
            both = [D for D in structured.common((method,)) if D in full.common((method,))]
            if both:
                ratio = structured.seconds(method, both[-1]) / full.seconds(method, both[-1])
                ratios[method] = (both[-1], ratio)
        return [
            claim(
                "EM, IRLS and AMP perform as in the dense case, because they do not exploit the structure.",
                f"times in (d) and (b) within a factor {SAME_TIME:g} at the largest common D",
                ", ".join(f"{LABELS[m]} {r:.2f} at {power(D)}" for m, (D, r) in ratios.items())
                + ("; AMP applies the dictionary as a fast transform here" if "amp" in ratios else "")
                or "needs (b) as well",
                all(1 / SAME_TIME <= r <= SAME_TIME for _, r in ratios.values()) if ratios else None,
            )
        ]

    def _structured_claims(self, rows: Rows) -> list[Check]:
        against_em = self._ratio(rows, "em", self.algorithm)
        against_irls = self._ratio(rows, "irls", self.algorithm)
        known = [found[-1][1] for found in (against_em, against_irls) if found]
        return [
            claim(
                "CoFEM can be faster by several orders of magnitude for large D.",
                "time of EM or IRLS / CoFEM at least 100 at the largest D at which both have a time",
                "; ".join((_at_largest("EM / CoFEM", against_em), _at_largest("IRLS / CoFEM", against_irls))),
                max(known) >= 100 if known else None,
            ),
            gpu_claim("With GPU acceleration, CoFEM is up to thousands of times faster than EM."),
        ]


def _at_largest(what: str, ratios: list[tuple[int, float]]) -> str:
    return f"{what} = {ratios[-1][1]:.1f} at D = {power(ratios[-1][0])}" if ratios else f"{what}: no common D"
