"""`cofem.fit_many`: many fits that share nothing, over the workers of a Dask cluster."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from cofem._arrays import precision_of
from cofem._fit import fit
from cofem.operators import Operator, as_operator
from cofem.operators.cluster import active_client
from cofem.operators.same_bits import aligned, one_blas_thread
from cofem.operators.transforms.host_lines import one_fft_thread
from cofem.posterior import Posterior

#: Bytes of what all tasks share up to which it is sent with each.
SENT_WITH_EACH = 2**20


@dataclass(frozen=True, eq=False)
class Fitted:
    """One of many fits.

    Attributes
    ----------
    task : int
        Its place among the tasks.
    posterior : Posterior or None
        The result; None if the fit raised.
    error : Exception or None
        What it raised.

    Examples
    --------
    >>> Fitted(3, None, ValueError("y must be finite")).error
    ValueError('y must be finite')
    """

    task: int
    posterior: Posterior | None
    error: Exception | None = None


def fit_many(
    tasks: Iterable[Mapping[str, Any]],
    *,
    client: Any = None,
    rng: int = 0,
    checkpoints: Any = None,
    progress: bool = False,
    **settings: Any,
) -> Iterator[Fitted]:
    """Fit many tasks that share nothing, on the workers of a Dask cluster; results come as they are ready.

    Tasks may be columns of y, seeds, noise levels, folds, or problems with dictionaries of their own. Each
    fit has one thread, so give workers one each. A task whose worker is lost is done again by
    another one, from its checkpoint if it has one.

    Parameters
    ----------
    tasks : iterable of mappings
        For each fit, arguments of `cofem.fit` that are its own. ``Phi`` may be a function without arguments
        that makes the dictionary on the worker.
    client : distributed.Client, optional
        The cluster; the active client by default. Without one, fits run here, one after the other.
    rng : int
        Seed: task i has the random numbers of ``numpy.random.default_rng([rng, i])``, wherever it runs,
        unless it has a ``rng`` of its own.
    checkpoints : path, optional
        Folder, which all workers can reach, for a checkpoint of each fit. A call that was stopped goes on
        from there when it is repeated.
    progress : bool
        Draw a progress bar.
    **settings
        Arguments of `cofem.fit` that all tasks share; ``Phi`` is sent to each worker once.

    Yields
    ------
    Fitted
        ``task``, ``posterior`` and ``error``, as fits end. A fit that raises does not stop the others.

    Examples
    --------
    >>> import numpy as np, cofem
    >>> Phi = np.random.default_rng(0).standard_normal((20, 40))
    >>> Y = Phi[:, [3, 7]] + 0.01
    >>> found = cofem.fit_many([{"y": y} for y in Y.T], Phi=Phi, noise_std=0.1)
    >>> {fitted.task: int(np.argmax(fitted.posterior.mean)) for fitted in found}
    {0: 3, 1: 7}
    """
    jobs = [_checked(i, task, settings) for i, task in enumerate(tasks)]
    if isinstance(rng, bool) or not isinstance(rng, int | np.integer) or rng < 0:
        raise TypeError(f"rng must be an integer of at least 0, which tasks derive theirs from, got {rng!r}")
    folder = None if checkpoints is None else Path(checkpoints)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    orders = [Order(i, job, int(rng), folder) for i, job in enumerate(jobs)]
    found = active_client() if client is None else client
    done = _here(orders, settings) if found is None else _on_cluster(found, orders, settings)
    return _shown(done, len(orders)) if progress else done


def _checked(i: int, task: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(task, Mapping):
        raise TypeError(
            f"tasks must be mappings of arguments of cofem.fit, got {type(task).__name__} for {i}"
        )
    for name in ("Phi", "y"):
        if name not in task and name not in settings:
            raise ValueError(f"task {i} has no {name}, and there is none for all tasks")
    unwanted = {"checkpoint", "resume", "progress", "callback"} & (set(task) | set(settings))
    if unwanted:
        raise ValueError(f"{', '.join(sorted(unwanted))}: not for many fits; see checkpoints and progress")
    return dict(task)


@dataclass(frozen=True)
class Order:
    """A fit to be made, wherever.

    Attributes
    ----------
    i : int
        Number of the task.
    task : dict
        Its own arguments.
    seed : int
        Seed of all tasks.
    folder : Path or None
        Where checkpoints are.
    """

    i: int
    task: dict[str, Any]
    seed: int
    folder: Path | None

    def __call__(self, settings: Mapping[str, Any]) -> Posterior:
        """Make the fit."""
        arguments = {"rng": np.random.default_rng([self.seed, self.i])} | dict(settings) | self.task
        if callable(arguments["Phi"]) and not isinstance(arguments["Phi"], Operator):
            arguments["Phi"] = arguments["Phi"]()
        arguments = {name: aligned(value) for name, value in arguments.items()}
        if self.folder is not None:
            path = self.folder / f"task-{self.i:05d}.npz"
            arguments |= {"checkpoint": path, "resume": path}
        with one_blas_thread(), one_fft_thread():
            return fit(arguments.pop("Phi"), arguments.pop("y"), **arguments)

    def remote(self, settings: Mapping[str, Any]) -> Posterior:
        """Make the fit on a worker: the dictionary, which the client has, is not sent back."""
        post = self(settings)
        return post if post.operator is None or post.tasks is not None else replace(post, operator=None)

    def completed(self, post: Posterior, settings: Mapping[str, Any]) -> Posterior:
        """Give the posterior its dictionary again, where the client has it."""
        Phi = self.task.get("Phi", settings.get("Phi"))
        is_made = callable(Phi) and not isinstance(Phi, Operator)
        if post.operator is not None or post.tasks is not None or is_made:
            return post
        return replace(post, operator=as_operator(Phi).astype(precision_of(post.y)))


def _here(orders: list[Order], settings: Mapping[str, Any]) -> Iterator[Fitted]:
    for order in orders:
        try:
            yield Fitted(order.i, order(settings))
        except Exception as error:
            yield Fitted(order.i, None, error)


def _on_cluster(client: Any, orders: list[Order], settings: Mapping[str, Any]) -> Iterator[Fitted]:
    import dask
    from distributed import as_completed

    name = f"cofem-fit-{uuid.uuid4().hex}"
    shared: Any = dict(settings)
    with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 TiB"}):
        if not _is_small(shared):
            # Kept by the scheduler, not scattered: a worker that is lost takes nothing with it. And on every
            # worker before the fits are: they would wait for the one that has it.
            shared = client.submit(_kept, shared, key=f"{name}-shared")
            client.replicate(shared)
        futures = {client.submit(order.remote, shared, key=f"{name}-{order.i}"): order for order in orders}
    try:
        for future in as_completed(list(futures), loop=client.loop):
            order = futures.pop(future)
            error = future.exception() if future.status != "finished" else None
            if future.status == "cancelled" or client.status != "running":
                raise ConnectionError(
                    f"the Dask client is {client.status} and {len(futures) + 1} fits are not done; "
                    "call again with the same checkpoints and a new client to go on"
                )
            yield (
                Fitted(order.i, None, error)
                if error is not None
                else Fitted(order.i, order.completed(future.result(), settings))
            )
            future.release()
    finally:
        if futures and client.status == "running":  # the caller has enough
            client.cancel(list(futures))


def _is_small(settings: dict[str, Any]) -> bool:
    """Tell whether what all tasks share may be sent with each: no operator, whose size Dask cannot tell."""
    from dask.sizeof import sizeof

    operators = (settings.get(name) for name in ("Phi", "analysis"))
    named = all(one is None or isinstance(one, str) for one in operators)
    return named and sizeof(settings) <= SENT_WITH_EACH


def _kept(settings: dict[str, Any]) -> dict[str, Any]:
    return settings


def _shown(done: Iterator[Fitted], count: int) -> Iterator[Fitted]:
    with _bar(count) as advance:
        for fitted in done:
            advance()
            yield fitted


@contextmanager
def _bar(count: int) -> Iterator[Any]:
    from rich.progress import Progress

    with Progress(transient=True) as drawn:
        task = drawn.add_task("fits", total=count)
        yield lambda: drawn.advance(task)
