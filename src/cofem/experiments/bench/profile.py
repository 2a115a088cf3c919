"""Where the time of a large fit goes: the operator should take most of it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

import numpy as np

import cofem
from cofem.experiments import problems
from cofem.experiments.study.base import (
    Options,
    Report,
    Study,
    Table,
    at_least,
    grid,
    number,
    power,
    seconds,
    sizes,
)
from cofem.experiments.study.measure import warm_up, whole_fit
from cofem.experiments.study.methods import METHODS
from cofem.experiments.study.results import Cell, Measurement, Rows
from cofem.operators import Operator
from cofem.operators.transforms.host_lines import ducc_fft


@contextmanager
def timed_products() -> Iterator[list[float]]:
    """Give a list that gets the seconds of every product with an operator, whoever calls for it.

    Products that other products are made of count as part of them.
    """
    times: list[float] = []
    inside = False

    def timed(product: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(product)
        def wrapped(operator: Operator, *arguments: Any) -> Any:
            nonlocal inside
            if inside:
                return product(operator, *arguments)
            inside, start = True, time.perf_counter()
            try:
                return product(operator, *arguments)
            finally:
                inside = False
                times.append(time.perf_counter() - start)

        return wrapped

    names = ("forward", "adjoint", "gram", "gradient_step")
    with ExitStack() as patches:
        for name in names:
            patches.enter_context(patch.object(Operator, name, timed(getattr(Operator, name))))
        yield times


@contextmanager
def transforms_by(library: str) -> Iterator[None]:
    """Have transforms made by SciPy alone meanwhile, or by ducc0 as well."""
    hidden: dict[str, Any] = {} if library == "ducc0" else {"ducc0": None}
    with patch.dict(sys.modules, hidden):
        ducc_fft.cache_clear()
        try:
            yield
        finally:
            ducc_fft.cache_clear()


class Profile(Study):
    """Share of a run inside operator applications."""

    name = "profile"
    summary = "share of a large fit that is spent inside operator applications"
    how = (
        "DCT samples, N = D/4, 0.1 D coefficients from N(0, 1), noise 0.005 known, float32, a default fit "
        "to its end. Every product with an operator is timed where it is called, those of the checks before "
        "the first step and after the last one among them. The limit is the time of the products alone. "
        "Transforms are SciPy's, as after a plain install, or those of ducc0 (the extra `fast`), which are "
        "faster."
    )
    setting_columns = ("D", "transforms")
    figures = ("operator_share",)

    def cells(self, options: Options) -> list[Cell]:
        """One size."""
        libraries = ("SciPy",) if ducc_fft() is None else ("SciPy", "ducc0")
        lengths = sizes(14) if options.quick else sizes(18)
        sweep = [{**length, "transforms": library} for length in lengths for library in libraries]
        return grid(sweep, ("default",), options.repeats)

    def measure(self, cell: Cell, options: Options, earlier: Rows) -> Measurement:
        """Fit, and ask the counter of products for their time."""
        method = METHODS[cell.method]
        D = int(cell.setting["D"])
        case = problems.dct(D, f=4, density=0.1, seed=cell.seed, dtype=np.float32)
        warm_up(method)
        with transforms_by(str(cell.setting["transforms"])), timed_products() as product_times:
            start = time.perf_counter()
            post = cofem.fit(case.Phi, case.y, noise_std=case.noise_std, method=method, rng=cell.seed)
            total = time.perf_counter() - start
        return whole_fit(case, post, total, {"operator_share": sum(product_times) / total})

    def report(self, rows: Rows) -> Report:
        """Give the share in percent."""
        lines, checks = [], []
        for D, library in ((D, name) for D in rows.values("D") for name in rows.values("transforms")):
            part = rows.where(D=D, transforms=library)
            share = 100 * part.median("operator_share")
            text = number(share, " %")
            total = part.median("seconds")
            outside = total * (1 - share / 100)
            lines.append(
                [power(D), library, seconds(total), seconds(total - outside), seconds(outside), text]
            )
            name = f"D = {power(D)}, transforms by {library}: share of the operator"
            checks.append(at_least(name, share, 70, text, " %"))
        header = ["D", "transforms", "time of the fit", "of the products", "of all else", "share"]
        return Report([Table("Share of the operator:", header, lines)], checks)
