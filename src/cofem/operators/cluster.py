"""Who holds chunks and answers for them: the workers of a Dask cluster, or threads of this process.

Chunks are futures, each loaded by one worker that the client chose, and stay there. What is asked of them is
not a task of the scheduler: the workers are called, once for each thread that holds chunks, and answer
(`Client.run`). That takes 3 ms where a task takes 12 to 30, and what moves is vectors alone. A worker that is
gone is noticed here: others load its chunks, and what was asked of them is asked again. That is no trouble: a
product changes nothing.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from cofem._memory import available_bytes, describe_bytes
from cofem.operators.chunk_sums import Question
from cofem.operators.chunks import Chunk, ChunkError, Recipe

#: Seconds between two looks at which workers are there, while answers are waited for.
LOOK = 0.3
#: Seconds to wait for workers where there are too few, or where one of them has no memory left to go on.
PATIENCE = 60.0
#: Seconds in which a worker that could not be reached is given no chunks. The scheduler may still name it: it
#: learns of a death by itself, at times later than whoever called the worker.
DOUBT = 5.0
#: Share of a worker's memory that chunks may take: Dask begins to write to disk at 60 % by default.
SHARE_OF_MEMORY = 0.6


@dataclass
class Traffic:
    """What products with a distributed dictionary took.

    Attributes
    ----------
    round_trips : int
        How often all that was asked was sent out and waited for.
    sent, received : int
        Bytes of vectors to and from workers.
    loaded : int
        Chunks that were asked to be loaded, the first time and again.
    lost : int
        Workers that were gone while they were waited for.

    Examples
    --------
    >>> Traffic(round_trips=2, sent=80).round_trips
    2
    """

    round_trips: int = 0
    sent: int = 0
    received: int = 0
    loaded: int = 0
    lost: int = 0


class Engine(Protocol):
    """Whoever holds the chunks of one dictionary."""

    recipe: Recipe
    traffic: Traffic

    def ask(
        self, question: Question, ks: Sequence[int], common: Any, own: Callable[[int], Any] | None
    ) -> Iterator[dict[Any, Any]]:
        """Ask chunks; return one answer for each place that holds some of them.

        Parameters
        ----------
        question : Question
            What to ask.
        ks : sequence of int
            The numbers of the chunks.
        common : Any
            What all chunks are given.
        own : callable or None
            What chunk k is given beside that.
        """


class LocalThreads:
    """Chunks in the memory of this process, each thread answers for some of them.

    Parameters
    ----------
    recipe : Recipe
        How chunks are made.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.traffic = Traffic()
        needed, free = recipe.bytes, available_bytes()
        if free is not None and needed > free:
            raise MemoryError(
                f"the chunks take {describe_bytes(needed)}, and this machine has {describe_bytes(free)} of "
                "memory left; give a Dask client with more, or use Chunked, which keeps no chunk"
            )
        self._chunks: dict[int, Chunk] = {}
        self._locks = [threading.Lock() for _ in range(recipe.layout.count)]

    def ask(
        self, question: Question, ks: Sequence[int], common: Any, own: Callable[[int], Any] | None
    ) -> Iterator[dict[Any, Any]]:
        """Ask chunks, in threads."""
        threads = min(os.cpu_count() or 1, len(ks))

        def answer(some: Sequence[int]) -> dict[Any, Any]:
            chunks = [self._chunk(k) for k in some]
            return question(chunks, some, common, None if own is None else [own(k) for k in some])

        groups = _split(ks, [1.0] * threads)
        if threads == 1:
            return iter([answer(groups[0])])
        with ThreadPoolExecutor(threads) as pool:
            return iter(list(pool.map(answer, groups)))

    def _chunk(self, k: int) -> Chunk:
        with self._locks[k]:
            if k not in self._chunks:
                self.traffic.loaded += 1
                self._chunks[k] = self.recipe(k)
            return self._chunks[k]


class _Worker(NamedTuple):
    """What is known of a worker."""

    threads: int
    memory: int | None
    paused: bool


@dataclass
class _Home:
    """Where a chunk is."""

    address: str
    future: Any
    #: How often what held it was lost since it last answered.
    losses: int = field(default=0)


class _LostError(Exception):
    """A worker is gone, or what it held."""


class _UnreachableError(_LostError):
    """A worker does not answer, whatever the scheduler says."""


class DaskWorkers:
    """Chunks in the memory of the workers of a cluster.

    Parameters
    ----------
    recipe : Recipe
        How chunks are made.
    client : distributed.Client
        Of the cluster.
    retries : int
        How often a chunk is asked for again after it could not be loaded, or after its worker was lost.
    """

    def __init__(self, recipe: Recipe, client: Any, retries: int) -> None:
        self.recipe, self.client, self.retries = recipe, client, retries
        self.traffic = Traffic()
        self._homes: dict[int, _Home] = {}
        self._threads: dict[str, int] = {}
        #: When workers that could not be reached were called, in monotonic seconds.
        self._doubted: dict[str, float] = {}
        self._asking = threading.Lock()

    def ask(
        self, question: Question, ks: Sequence[int], common: Any, own: Callable[[int], Any] | None
    ) -> Iterator[dict[Any, Any]]:
        """Ask chunks on their workers, again where one of them is lost."""
        with self._asking:
            self._check_client()
            try:
                answers = self.client.sync(self._ask, question, list(ks), common, own)
            except (CancelledError, asyncio.CancelledError) as error:
                raise self._gone() from error
            except OSError as error:
                if self.client.status != "running":
                    raise self._gone() from error
                raise
        return iter(answers)

    def _check_client(self) -> None:
        if self.client.status != "running":
            raise self._gone()

    def _gone(self) -> ConnectionError:
        return ConnectionError(
            f"the Dask client is {self.client.status}: the scheduler, or the connection to it, is gone; "
            "go on from a checkpoint with a new client"
        )

    async def _ask(
        self, question: Question, ks: list[int], common: Any, own: Callable[[int], Any] | None
    ) -> list[dict[Any, Any]]:
        answers: list[dict[Any, Any]] = []
        left = ks
        while left:
            await self._settle(left)
            self.traffic.round_trips += 1
            jobs: dict[asyncio.Future, tuple[str, list[int]]] = {}
            for address, some in self._groups(left):
                mine = None if own is None else [own(k) for k in some]
                asked = asyncio.ensure_future(self._job(question, address, some, common, mine))
                jobs[asked] = (address, some)
            try:
                left = await self._collect(jobs, answers)
            finally:
                for job in jobs:
                    job.cancel()
        return answers

    async def _collect(
        self, jobs: dict[asyncio.Future, tuple[str, list[int]]], answers: list[dict[Any, Any]]
    ) -> list[int]:
        """Wait for answers; return the chunks whose workers were lost."""
        pending, again = set(jobs), []
        short_of_memory: dict[str, float] = {}
        while pending:
            done, pending = await asyncio.wait(pending, timeout=LOOK, return_when=asyncio.FIRST_COMPLETED)
            for job in done:
                address, some = jobs[job]
                try:
                    answers.append(job.result())
                    for k in some:
                        self._homes[k].losses = 0
                except _LostError as error:
                    if isinstance(error, _UnreachableError):
                        self._doubted[address] = time.monotonic()
                    self._lose(address, some)
                    again += some
            if done or not pending:
                continue
            workers = await self._workers()
            for job in list(pending):
                address, some = jobs[job]
                if address not in workers:
                    job.cancel()
                    pending.discard(job)
                    self._lose(address, some)
                    again += some
                elif workers[address].paused:
                    since = short_of_memory.setdefault(address, time.monotonic())
                    if time.monotonic() - since > PATIENCE:
                        raise self._short_of_memory(some, workers[address], f"paused for {PATIENCE:.0f} s")
                else:
                    short_of_memory.pop(address, None)
        return sorted(again)

    async def _job(
        self, question: Question, address: str, ks: list[int], common: Any, own: list[Any] | None
    ) -> dict[Any, Any]:
        """Have one worker answer for some chunks, once it holds them."""
        from distributed import KilledWorker, wait

        futures = [self._homes[k].future for k in ks]
        try:
            if any(future.status == "pending" for future in futures):
                with self.client.as_current():
                    loaded = wait(futures)
                await loaded
            for k, future in zip(ks, futures, strict=True):
                if future.status == "error":
                    raise self._not_loaded(k, await future.exception())
            keys = [future.key for future in futures]
            self.traffic.sent += _nbytes(common) + _nbytes(own)
            found = await self.client.run(
                _answer, question, keys, ks, common, own, workers=[address], asynchronous=True
            )
        except (KilledWorker, CancelledError, TimeoutError, OSError) as error:
            # The worker is gone; or the scheduler, and then the next round will tell.
            self._check_client()
            raise _UnreachableError(str(error)) from error
        answer: dict[Any, Any] | None = found[address]
        if answer is None:
            raise _LostError("the worker no longer holds what it held")
        self.traffic.received += _nbytes(list(answer.values()))
        return answer

    def _not_loaded(self, k: int, error: BaseException) -> Exception:
        from distributed import KilledWorker

        if isinstance(error, KilledWorker):
            return _LostError(str(error))
        if isinstance(error, ChunkError):  # it names the chunk
            return error
        # Of what a Dask array computes.
        words = f"{self.recipe.layout.describe(k)} could not be loaded: {type(error).__name__}: {error}"
        return ChunkError(words)

    # --- who holds what ---------------------------------------------------------------------------------

    def _groups(self, ks: Sequence[int]) -> Iterator[tuple[str, list[int]]]:
        """Yield the chunks of each thread of each worker, in their order."""
        by_worker: dict[str, list[int]] = {}
        for k in ks:
            by_worker.setdefault(self._homes[k].address, []).append(k)
        for address, some in by_worker.items():
            threads = min(self._threads.get(address, 1), len(some))
            for group in _split(some, [1.0] * threads):
                yield address, group

    def _lose(self, address: str, ks: Sequence[int]) -> None:
        """Note that a worker was lost while it was to answer for some chunks."""
        self.traffic.lost += 1
        for k in ks:
            home = self._homes[k]
            home.losses += 1
            if home.losses > self.retries:
                often = "once" if home.losses == 1 else f"{home.losses} times in a row"
                raise self._short_of_memory([k], None, f"lost its worker {often}")
        for home in self._homes.values():  # the others are gone as well, if the worker is
            if home.address == address:
                home.future = None

    def _short_of_memory(self, ks: Sequence[int], worker: _Worker | None, what: str) -> ChunkError:
        layout = self.recipe.layout
        whole = sum(
            self.recipe.chunk_bytes(k)
            for k, home in self._homes.items()
            if home.address == self._homes[ks[0]].address
        )
        limit = "" if worker is None or worker.memory is None else f" of {describe_bytes(worker.memory)}"
        return ChunkError(
            f"{layout.describe(ks[0])} of {describe_bytes(self.recipe.chunk_bytes(ks[0]))} {what}; a worker "
            f"out of memory ends so: it was to hold {describe_bytes(whole)} of chunks{limit}. Use smaller "
            "chunks, more workers, or workers with more memory; the workers' logs say more"
        )

    async def _workers(self) -> dict[str, _Worker]:
        """Return the workers that are there."""
        try:
            found = await asyncio.wait_for(self.client.scheduler.identity(n_workers=-1), PATIENCE)
        except (OSError, TimeoutError) as error:
            raise self._gone() from error
        return {
            address: _Worker(info["nthreads"], info["memory_limit"] or None, info["status"] == "paused")
            for address, info in found["workers"].items()
            if info["status"] in ("running", "paused")
        }

    async def _settle(self, ks: Sequence[int]) -> None:
        """See to it that chunks have a worker that holds them, or loads them."""
        homeless = [k for k in ks if not self._is_held(k)]
        if not homeless:
            return
        workers = await self._enough_workers()
        self._threads = {address: worker.threads for address, worker in workers.items()}
        gone = [k for k, home in self._homes.items() if home.address not in workers]
        for k in gone:
            self._homes[k].future = None
        homeless = [k for k in ks if not self._is_held(k)]
        for address, some in self._shares(homeless, workers):
            for k in some:
                losses = self._homes[k].losses if k in self._homes else 0
                self._homes[k] = _Home(address, self._load(k, address), losses)
                self.traffic.loaded += 1

    def _is_held(self, k: int) -> bool:
        home = self._homes.get(k)
        return home is not None and home.future is not None and home.future.status in ("pending", "finished")

    def _load(self, k: int, address: str) -> Any:
        return self.recipe.submitted(self.client, k, address, self.retries)

    async def _enough_workers(self) -> dict[str, _Worker]:
        """Return the workers, once they have the memory that all chunks take together."""
        started, needed = time.monotonic(), self.recipe.bytes
        while True:
            workers = {a: worker for a, worker in (await self._workers()).items() if not self._in_doubt(a)}
            limits = [worker.memory for worker in workers.values()]
            known = sum(limit for limit in limits if limit is not None)
            if workers and (None in limits or needed <= SHARE_OF_MEMORY * known):
                return workers
            waited = time.monotonic() - started
            # Workers that were lost may come back; those that never were there will not.
            if waited > (PATIENCE if self.traffic.lost or not workers else 0.0):
                break
            await asyncio.sleep(LOOK)
        if not workers:
            raise ConnectionError(
                f"no worker came within {PATIENCE:.0f} s to {self.client.scheduler.address}"
            )
        raise MemoryError(
            f"the chunks take {describe_bytes(needed)}, and {len(workers)} worker"
            f"{'s' if len(workers) > 1 else ''} with {describe_bytes(known)} of memory together may hold "
            f"{describe_bytes(SHARE_OF_MEMORY * known)} of them ({SHARE_OF_MEMORY:.0%}); start more workers, "
            "give them more memory, or store the numbers in a smaller type"
        )

    def _in_doubt(self, address: str) -> bool:
        return time.monotonic() - self._doubted.get(address, -DOUBT) < DOUBT

    def _shares(self, ks: Sequence[int], workers: dict[str, _Worker]) -> Iterator[tuple[str, Sequence[int]]]:
        """Yield which of the chunks each worker is to hold: those with most room left get most."""
        held: Counter[str] = Counter()
        for k, home in self._homes.items():
            if home.future is not None:
                held[home.address] += self.recipe.chunk_bytes(k)
        known = all(worker.memory is not None for worker in workers.values())
        whole = self.recipe.bytes
        room = {
            address: max((worker.memory or 0) if known else whole, 1) - held[address]
            for address, worker in workers.items()
        }
        # Everyone is brought to the same share of their memory, as far as that goes.
        asked = sum(self.recipe.chunk_bytes(k) for k in ks)
        total = sum(room.values()) + sum(held.values())
        level = (asked + sum(held.values())) / max(total, 1)
        weights = [max(level * (room[a] + held[a]) - held[a], 0.0) for a in workers]
        yield from zip(workers, _split(ks, weights), strict=True)


async def _answer(
    question: Question, keys: Sequence[Any], ks: Sequence[int], common: Any, own: Any, dask_worker: Any
) -> dict[Any, Any] | None:
    """Answer on a worker, in one of the threads that it has for tasks; None if it lost the chunks."""
    try:
        chunks = [dask_worker.data[key] for key in keys]
    except KeyError:
        return None
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(dask_worker.executors["default"], question, chunks, ks, common, own)


def _split(ks: Sequence[int], weights: Sequence[float]) -> list[list[int]]:
    """Cut a sequence into runs whose lengths are as the weights.

    Examples
    --------
    >>> _split(range(5), [1.0, 1.0]), _split(range(4), [0.0, 3.0, 1.0])
    ([[0, 1], [2, 3, 4]], [[], [0, 1, 2], [3]])
    """
    total = sum(weights)
    shares = np.cumsum(weights) / total if total else np.arange(1, len(weights) + 1) / len(weights)
    ends = np.floor(shares * len(ks) + 1e-9).astype(int).tolist()
    ends[-1] = len(ks)
    return [list(ks[start:end]) for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def _nbytes(value: Any) -> int:
    """Return the bytes of the arrays in a value."""
    if isinstance(value, list | tuple):
        return sum(_nbytes(part) for part in value)
    return value.nbytes if isinstance(value, np.ndarray) else 0


def active_client() -> Any | None:
    """Return the Dask client that is active in this process, None if there is none."""
    import sys

    if "distributed" not in sys.modules:  # then nobody has made one
        return None
    from distributed import Client

    try:
        return Client.current()
    except ValueError:
        return None
