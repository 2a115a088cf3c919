"""Large pictures and volumes in analysis form."""

from __future__ import annotations

import json
import sys
import time
import warnings
from dataclasses import asdict
from typing import Any

import numpy as np

import cofem
from cofem.experiments.study.base import (
    Check,
    Options,
    Report,
    Study,
    Table,
    at_least,
    at_most,
    grid,
    number,
    seconds,
)
from cofem.experiments.study.fresh import ask_fresh_process
from cofem.experiments.study.memory import peak_mb, reset_peak, resident_mb
from cofem.experiments.study.results import TIME_LIMIT, Cell, Measurement, Rows
from cofem.operators import Mask

#: Bytes of a number in float32.
ITEM = 4
#: Share of the places that is seen, and the noise.
SEEN, NOISE = 0.4, 0.05


class Pictures(Study):
    """A picture and a volume of which some places are seen, with ``analysis="auto"``, in fresh processes."""

    name = "pictures"
    summary = "pictures and volumes by their differences, from 40 % of their places"
    how = (
        "Ellipsoids of random sizes and heights on a smooth ground, 40 % of the places seen, noise 0.05 (of "
        'a range of about 2), float32; `cofem.fit(Mask(seen), y, analysis="auto")` to its end in a process '
        "of its own, which learns the noise and chooses who shares precisions. *Added* is the peak of the "
        "resident memory during the fit, less what was resident right before it; a vector is D numbers of "
        "4 bytes. *Hold* is the share of unseen places within their 95 % intervals, NRMSE is that of the "
        "unseen places about their mean. The time is that of the processor."
    )
    setting_columns = ("side", "axes")
    figures = ("before_mb", "added_mb", "hold", "noise_std")

    vectors_wanted = 40

    def cells(self, options: Options) -> list[Cell]:
        """Return a picture and a volume, smaller ones for a first look."""
        shapes = [(256, 2), (40, 3)] if options.quick else [(1024, 2), (128, 3)]
        return grid([{"side": side, "axes": axes} for side, axes in shapes], ("default",), 1)

    def measure(self, cell: Cell, options: Options, earlier: Rows) -> Measurement:
        """Fit in a fresh process."""
        request = {**cell.setting, "seed": cell.seed, "time_limit": options.time_limit}
        return Measurement(**ask_fresh_process("cofem.experiments.bench.pictures", request))

    def report(self, rows: Rows) -> Report:
        """Give time, memory, error and coverage."""
        lines: list[list[str]] = []
        checks: list[Check] = []
        for axes in rows.values("axes"):
            for side in rows.where(axes=axes).values("side"):
                part = rows.where(side=side, axes=axes)
                name = " x ".join([str(side)] * axes)
                vectors = 1e6 * part.median("added_mb") / (ITEM * side**axes)
                hold = part.median("hold")
                lines.append(
                    [
                        name,
                        seconds(part.median("seconds")),
                        number(part.median("iterations")),
                        number(part.median("added_mb"), " MB"),
                        number(vectors),
                        number(part.median("nrmse"), " %"),
                        number(hold, " %"),
                        number(part.median("noise_std")),
                    ]
                )
                what = f"{name}: vectors of length D above the data"
                checks.append(at_most(what, vectors, self.vectors_wanted, number(vectors)))
                what, text = f"{name}: unseen places in their intervals", number(hold, " %")
                checks.append(at_least(what, hold, 90, text, " %"))
                checks.append(at_most(what, hold, 98, text, " %"))
        header = ["places", "time", "steps", "added", "added / vector", "NRMSE", "hold", "noise learned"]
        return Report([Table("The fits:", header, lines)], checks)


def ellipsoids(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Return an array of edges and shades, in float32.

    Examples
    --------
    >>> ellipsoids((8, 8), 0).shape, ellipsoids((4, 4, 4), 1).dtype
    ((8, 8), dtype('float32'))
    """
    rng = np.random.default_rng(seed)
    axes = np.meshgrid(*(np.linspace(-1, 1, n, dtype=np.float32) for n in shape), indexing="ij", sparse=True)
    total = np.zeros(shape, np.float32)
    for axis in axes:
        total += 0.2 * np.sin((1 + 2 * rng.random()) * axis + 6 * rng.random(), dtype=np.float32)
    for _ in range(12):
        centre, radius = rng.uniform(-0.8, 0.8, len(shape)), rng.uniform(0.1, 0.5, len(shape))
        distance = sum(((x - c) / r) ** 2 for x, c, r in zip(axes, centre, radius, strict=True))
        total[distance < 1] += np.float32(rng.uniform(-0.5, 0.5))
    return total


def fitted(side: int, axes: int, seed: int, time_limit: float) -> Measurement:
    """Make the problem, fit it in this process, and measure time and memory."""
    shape = (side,) * axes
    truth = ellipsoids(shape, seed)
    rng = np.random.default_rng(seed)
    seen = rng.random(shape) < SEEN
    y = truth[seen] + np.float32(NOISE) * rng.standard_normal(int(seen.sum()), dtype=np.float32)
    Phi = Mask(seen)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # two steps of a small fit, for the libraries to be there
        few = np.random.default_rng(0).random((24, 24)) < SEEN
        cofem.fit(Mask(few), np.ones(int(few.sum())), analysis="auto", rng=0, max_iter=2)
    reset_peak()
    before, start = resident_mb(), time.process_time()
    post = cofem.fit(
        Phi, y, analysis="auto", rng=seed, callback=lambda _: time.process_time() - start > time_limit
    )
    spent, peak = time.process_time() - start, peak_mb()
    off = (post.mean.reshape(shape) - truth)[~seen]
    hidden = truth[~seen]
    hold = np.mean(np.abs(off) < 1.96 * post.std.reshape(shape)[~seen])
    error = np.sqrt(np.mean(off**2)) / np.std(hidden)
    late = spent > time_limit
    return Measurement(
        seconds=spent,
        applications=float(post.history["applications"][-1]),
        iterations=post.n_iter,
        nrmse=100 * float(error),
        reached=not late,
        peak_mb=peak,
        note=f"{TIME_LIMIT} of {time_limit:g} s" if late else str(post.status),
        figures={
            "before_mb": before,
            "added_mb": peak - before,
            "hold": 100 * float(hold),
            "noise_std": float(post.noise_std),
        },
    )


def main() -> None:
    """Answer the request on standard input."""
    request: dict[str, Any] = json.load(sys.stdin)
    json.dump(asdict(fitted(**request)), sys.stdout)
