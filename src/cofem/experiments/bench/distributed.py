"""Dictionaries and fits on a cluster: what a product costs beside one process, and how fits scale."""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import cofem
from cofem.experiments.study.base import Options, Report, Skipped, Study, Table, at_least, at_most, number
from cofem.experiments.study.results import TIME_LIMIT, Cell, Measurement, Rows, Value
from cofem.operators import Dense, Distributed

#: Vectors that travel together in a product, as a mean and a few probes do.
VECTORS = 4
#: Dask has workers give memory back at once, and the system then makes every array anew: fits took 3 times
#: the processor time. And all processes look at themselves many times a second, on the cores of the workers.
CONFIGURATION = {
    **{f"distributed.nanny.pre-spawn-environ.MALLOC_{name}_THRESHOLD_": 2**30 for name in ("TRIM", "MMAP")},
    "distributed.admin.tick.interval": "500ms",
    "distributed.admin.system-monitor.interval": "5s",
    "distributed.worker.memory.monitor-interval": "1s",
    "distributed.worker.profile.enabled": False,
}
#: Noise, relative to the root mean square of what the signal adds to the data.
NOISE = 0.01


@dataclass(frozen=True)
class Columns:
    """Columns of a Gaussian dictionary, made where they are wanted.

    Attributes
    ----------
    n, width : int
        Rows, and columns of a chunk.
    seed : int
        Of the dictionary.
    """

    n: int
    width: int
    seed: int

    def __call__(self, k: int) -> np.ndarray:
        """Return chunk k, in single precision."""
        rng = np.random.default_rng([self.seed, k])
        chunk = rng.standard_normal((self.n, self.width), dtype=np.float32)
        chunk /= np.float32(math.sqrt(self.n))
        return chunk


class OnCluster(Study):
    """Products, a fit and many fits on a cluster of this machine."""

    name = "distributed"
    summary = "a dictionary that no worker may hold, and many fits, on a Dask cluster of this machine"
    how = (
        "A `LocalCluster` of worker processes, one thread each, with a limit on the memory of each that is "
        "below the size of the dictionary: N(0, 1/N) in float32, chunks of columns that workers make from "
        "their number; the client holds it for the comparison in *product* alone. *product*: "
        "`Phi diag(g) Phi^H v` of 4 vectors, against one process with all of Phi in memory, in turns, "
        "medians: with one BLAS thread and with as many as there are workers, of which the faster counts; "
        "*times as fast* is against one thread. *fit*: 0.002 D coefficients from N(0, 1), noise 1 % of the "
        "signal, which is given, float32, to its end. *fits*: 64 fits (N = 800, D = 3200, dense), one after "
        "the other in one process with one thread, over the workers, and in as many processes without Dask, "
        "in turns of 16. *network*: time of an empty round trip, and bytes a second of 10 MB to each worker "
        "and back."
    )
    setting_columns = ("N", "D", "chunks", "workers")
    figures = (
        "alone_s",
        "latency_ms",
        "bandwidth_mb",
        "round_trips",
        "sent_mb",
        "received_mb",
        "ratio",
    )

    overhead_wanted, ms_a_chunk, speedup_wanted = 0.15, 1.0, 1.7

    def cells(self, options: Options) -> list[Cell]:
        """Return the four of them."""
        small: dict[str, Value] = {"N": 400, "D": 1600, "chunks": 8, "workers": 2}
        large: dict[str, Value] = {"N": 20_000, "D": 51_200, "chunks": 64, "workers": 2}
        return [Cell(small if options.quick else large, name, 0) for name in MEASURES]

    def measure(self, cell: Cell, options: Options, earlier: Rows) -> Measurement:
        """Measure one of them on a cluster of its own."""
        try:
            import distributed  # noqa: F401
        except ImportError as error:
            raise Skipped("needs dask and distributed: pip install cofem[dask]") from error
        with _cluster(cell) as client:
            return MEASURES[cell.method](cell, options, client)

    def report(self, rows: Rows) -> Report:
        """Say what a product and a step cost."""
        lines, checks = [], []
        for row in rows:
            cell, found = row.cell, row.measurement
            lines.append(
                [
                    cell.method,
                    f"{cell.setting['N']} x {cell.setting['D']}, {cell.setting['chunks']} chunks",
                    number(found.seconds, " s"),
                    number(found["alone_s"], " s"),
                    number(found.iterations),
                    number(found["round_trips"]),
                    f"{number(found['sent_mb'])} / {number(found['received_mb'])} MB",
                    number(found["latency_ms"], " ms"),
                    number(found["bandwidth_mb"], " MB/s"),
                    number(found["ratio"]),
                    found.note or (number(found.nrmse, " %") if not math.isnan(found.nrmse) else ""),
                ]
            )
            if cell.method == "product":
                allowed = (1 + self.overhead_wanted) * found["alone_s"]
                allowed += self.ms_a_chunk / 1000 * int(cell.setting["chunks"])
                what = "a product on the cluster, against 1.15 times one process plus 1 ms a chunk"
                checks.append(at_most(what, found.seconds, allowed, number(found.seconds, " s"), " s"))
            if cell.method == "fit":
                reached = 1.0 if found.reached else 0.0
                checks.append(
                    at_least("the fit came to its end", reached, 1, "yes" if found.reached else "no")
                )
            if cell.method == "fits":
                what = "64 fits over 2 workers, against one after the other: times as fast"
                checks.append(at_least(what, found["ratio"], self.speedup_wanted, number(found["ratio"])))
        header = [
            "what",
            "dictionary",
            "on the cluster",
            "one process",
            "steps",
            "round trips",
            "sent / received",
            "round trip",
            "bandwidth",
            "times as fast",
            "NRMSE, or note",
        ]
        caption = "Times; for the fit, round trips and bytes are those of one outer step, on average:"
        return Report([Table(caption, header, lines)], checks)


@contextmanager
def _cluster(cell: Cell) -> Iterator[Any]:
    import dask
    from distributed import Client, LocalCluster

    size = 4 * int(cell.setting["N"]) * int(cell.setting["D"])
    workers = int(cell.setting["workers"])
    # Chunks may take 60 % of it; all of Phi does not fit.
    limit = max(int(0.88 * size), 2**30)
    settings = {"n_workers": workers, "threads_per_worker": 1, "memory_limit": limit}
    with (
        dask.config.set(CONFIGURATION),
        LocalCluster(dashboard_address=":0", **settings) as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(workers)
        yield client


def _dictionary(cell: Cell, client: Any) -> tuple[Distributed, Columns]:
    N, D, chunks = (int(cell.setting[name]) for name in ("N", "D", "chunks"))
    load = Columns(N, D // chunks, cell.seed)
    return Distributed(load, (N, D), (N, D // chunks), client, dtype=np.float32), load


def _seconds(do: Callable[[], Any]) -> float:
    start = time.perf_counter()
    do()
    return time.perf_counter() - start


def _product(cell: Cell, options: Options, client: Any) -> Measurement:
    """Time a product on the cluster and in one process, in turns."""
    Phi, load = _dictionary(cell, client)
    N, D = Phi.shape
    rng = np.random.default_rng(0)
    v = rng.standard_normal((VECTORS, N), dtype=np.float32)
    g = rng.random(D, dtype=np.float32)
    found = Phi.dual_gram(v, g)
    before = (Phi.traffic.round_trips, Phi.traffic.sent, Phi.traffic.received)
    whole = np.empty((N, D), np.float32)
    for k in range(int(cell.setting["chunks"])):
        whole[:, k * load.width : (k + 1) * load.width] = load(k)
    alone = Dense(whole)
    error = float(np.linalg.norm(found - alone.dual_gram(v, g)) / np.linalg.norm(found))
    times = []
    for _ in range(3 if options.quick else 7):
        turn = [_seconds(lambda: Phi.dual_gram(v, g))]
        for threads in (1, int(cell.setting["workers"])):
            with threadpool_limits(threads, user_api="blas"):
                turn.append(_seconds(lambda: alone.dual_gram(v, g)))
        times.append(turn)
    together, one_thread, all_threads = (statistics.median(each) for each in zip(*times, strict=True))
    after = (Phi.traffic.round_trips, Phi.traffic.sent, Phi.traffic.received)
    trips, sent, received = ((b - a) / len(times) for a, b in zip(before, after, strict=True))
    figures = {
        "alone_s": min(one_thread, all_threads),
        "ratio": one_thread / together,
        "round_trips": trips,
        "sent_mb": sent / 1e6,
        "received_mb": received / 1e6,
    }
    return Measurement(together, nrmse=100 * error, reached=True, figures=figures | _missing(figures))


def _fit(cell: Cell, options: Options, client: Any) -> Measurement:
    """Fit on the cluster, to the end."""
    Phi, _ = _dictionary(cell, client)
    N, D = Phi.shape
    rng = np.random.default_rng(1)
    truth = np.zeros(D, np.float32)
    chosen = rng.choice(D, max(1, D // 500), replace=False)
    truth[chosen] = rng.standard_normal(len(chosen))
    clean = Phi.forward(truth)
    noise_std = NOISE * float(np.sqrt(np.mean(clean**2)))
    y = clean + np.float32(noise_std) * rng.standard_normal(N, dtype=np.float32)
    before = (Phi.traffic.round_trips, Phi.traffic.sent, Phi.traffic.received)
    start = time.perf_counter()
    post = cofem.fit(
        Phi,
        y,
        noise_std=noise_std,
        method="cofem",
        rng=0,
        callback=lambda state: time.perf_counter() - start > options.time_limit,
    )
    total = time.perf_counter() - start
    after = (Phi.traffic.round_trips, Phi.traffic.sent, Phi.traffic.received)
    trips, sent, received = ((b - a) / post.n_iter for a, b in zip(before, after, strict=True))
    figures = {"round_trips": trips, "sent_mb": sent / 1e6, "received_mb": received / 1e6}
    return Measurement(
        total,
        applications=float(post.history["applications"][-1]),
        iterations=post.n_iter,
        nrmse=100 * float(np.linalg.norm(post.mean - truth) / np.linalg.norm(truth)),
        reached=post.converged,
        note="" if total < options.time_limit else TIME_LIMIT,
        figures=figures | _missing(figures),
    )


def _many(cell: Cell, options: Options, client: Any) -> Measurement:
    """Make many fits, one after the other and over the workers, in turns."""
    count, turns = (4, 1) if options.quick else (16, 4)
    tasks = [{"Phi": partial(_small_dictionary, i), "y": _small_data(i)} for i in range(count * turns)]
    settings: dict[str, Any] = {"noise_std": 0.05, "method": "cofem"}
    workers = int(cell.setting["workers"])
    list(cofem.fit_many(tasks[:workers], client=client, **settings))  # workers import what they need
    alone = together = plain = alone_cpu = 0.0
    workers_cpu: Counter[str] = Counter()
    processes = ProcessPoolExecutor(workers, get_context("spawn"), threadpool_limits, (1,))
    with processes, threadpool_limits(1, user_api="blas"):
        _fit_in_processes(settings, tasks[:workers], processes)
        for turn in range(turns):
            some = tasks[turn * count : (turn + 1) * count]
            before = client.run(time.process_time)
            together += _seconds(partial(_fit_there, settings, some, client))
            workers_cpu.update({a: used - before[a] for a, used in client.run(time.process_time).items()})
            began = time.process_time()
            alone += _seconds(partial(_fit_here, settings, some))
            alone_cpu += time.process_time() - began
            plain += _seconds(partial(_fit_in_processes, settings, some, processes))
    figures = {"alone_s": alone, "ratio": alone / together}
    busiest = max(workers_cpu.values())
    note = (
        f"CPU: {alone_cpu:.1f} s one after the other, {busiest:.1f} s in the busiest worker; {workers} "
        f"processes without Dask: {plain:.1f} s, {alone / plain:.2f} times as fast"
    )
    return Measurement(together, reached=True, note=note, figures=figures | _missing(figures))


def _fit_there(settings: dict[str, Any], tasks: list[dict[str, Any]], client: Any) -> None:
    errors = [done.error for done in cofem.fit_many(tasks, client=client, **settings)]
    if any(errors):
        raise next(filter(None, errors))


def _fit_in_processes(
    settings: dict[str, Any], tasks: list[dict[str, Any]], processes: ProcessPoolExecutor
) -> None:
    list(processes.map(partial(_fit_here, settings), [[task] for task in tasks]))


def _fit_here(settings: dict[str, Any], tasks: list[dict[str, Any]]) -> None:
    for task in tasks:
        cofem.fit(task["Phi"](), task["y"], rng=0, **settings)


def _small_dictionary(i: int) -> np.ndarray:
    return np.random.default_rng([7, i]).standard_normal((800, 3200))


def _small_data(i: int) -> np.ndarray:
    rng = np.random.default_rng([8, i])
    return _small_dictionary(i)[:, rng.choice(3200, 48, replace=False)].sum(
        axis=1
    ) + 0.05 * rng.standard_normal(800)


def _network(cell: Cell, options: Options, client: Any) -> Measurement:
    """Time round trips that carry nothing, and ones that carry much."""
    workers = int(cell.setting["workers"])
    length = 2**10 if options.quick else 2**17
    empty = Distributed(_one, (1, workers), (1, 1), client)
    wide = Distributed(partial(_ones, length), (length, workers), (length, 1), client)
    small, large = np.ones(1), np.ones((10, length))
    empty.dual_gram(small)
    wide.dual_gram(large)
    latency = statistics.median(_seconds(lambda: empty.dual_gram(small)) for _ in range(20))
    loaded = statistics.median(_seconds(lambda: wide.dual_gram(large)) for _ in range(5))
    moved = 2 * workers * large.nbytes / 1e6
    figures = {"latency_ms": 1000 * latency, "bandwidth_mb": moved / max(loaded - latency, 1e-9)}
    return Measurement(loaded, reached=True, figures=figures | _missing(figures))


def _one(k: int) -> np.ndarray:
    return np.ones((1, 1))


def _ones(length: int, k: int) -> np.ndarray:
    return np.ones((length, 1))


def _missing(figures: dict[str, float]) -> dict[str, float]:
    return {name: math.nan for name in OnCluster.figures if name not in figures}


#: What is measured, by name.
MEASURES: dict[str, Callable[[Cell, Options, Any], Measurement]] = {
    "product": _product,
    "network": _network,
    "fits": _many,
    "fit": _fit,
}
