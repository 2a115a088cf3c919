"""An image of four million coefficients."""

from __future__ import annotations

from cofem.experiments.study.base import Options, Report, Study, Table, at_most, grid, number, seconds
from cofem.experiments.study.fresh import MEMORY_FIGURES, Request, fit_in_fresh_process
from cofem.experiments.study.results import Cell, Measurement, Rows


class Image(Study):
    """A fit with the 2-D DCT, in a fresh process."""

    name = "image"
    summary = "a 2048 x 2048 image from a quarter of its pixels"
    how = (
        "2-D DCT of an image of side x side pixels, a quarter of them seen, 0.04 D coefficients from N(0, "
        "1), noise 0.005 known, float32, a default fit to its end in a process of its own. *Peak* is that "
        "of the resident memory of the process from the start of the fit on, data and libraries included."
    )
    setting_columns = ("side",)
    figures = MEMORY_FIGURES

    peak_mb_wanted = 3000

    def cells(self, options: Options) -> list[Cell]:
        """One size."""
        return grid([{"side": 256 if options.quick else 2048}], ("default",), options.repeats)

    def measure(self, cell: Cell, options: Options, earlier: Rows) -> Measurement:
        """Fit in a fresh process."""
        arguments = {"side": cell.setting["side"], "f": 4, "density": 0.04, "dtype": "float32"}
        request = Request("dct2", arguments, cell.method, cell.seed, time_limit=options.time_limit)
        return fit_in_fresh_process(request)

    def report(self, rows: Rows) -> Report:
        """Give time, memory and error."""
        lines, checks = [], []
        for side in rows.values("side"):
            part = rows.where(side=side)
            peak = number(part.median("peak_mb"), " MB")
            steps, error = number(part.median("iterations")), number(part.median("nrmse"), " %")
            lines.append([f"{side} x {side}", seconds(part.median("seconds")), steps, peak, error])
            what = f"{side} x {side}: peak of the process"
            checks.append(at_most(what, part.median("peak_mb"), self.peak_mb_wanted, peak, " MB"))
        return Report([Table("The fit:", ["image", "time", "steps", "peak", "NRMSE"], lines)], checks)
