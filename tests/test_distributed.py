"""Dictionaries on a real cluster of worker processes: right, the same bits, and safe when workers die."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

# Processes that begin as copies of one that has the imports done are there in a tenth of a second.
os.environ.setdefault("DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD", "forkserver")

import dask.array
import numpy as np
import pytest
import scipy.sparse
from distributed import Client, LocalCluster
from sklearn.model_selection import GridSearchCV
from typer.testing import CliRunner

import cofem
from cofem import _many
from cofem.cli import app
from cofem.operators import DCT, Chunked, Dense, Diagonal, Distributed, Mask, as_operator
from cofem.operators import cluster as engines
from cofem.operators.chunk_sums import Tree
from cofem.operators.chunks import ChunkError

get_context("forkserver").set_forkserver_preload(["distributed", "cofem._fit", "cofem.operators"])

N, D, WIDTH = 48, 160, 10
MATRIX = np.random.default_rng(0).standard_normal((N, D))
TRUTH = np.zeros(D)
TRUTH[[3, 50, 77, 120]] = 3.0, -2.0, 1.0, 2.5
Y = MATRIX @ TRUTH + 0.05 * np.random.default_rng(1).standard_normal(N)
METHOD = cofem.CoFEM(diagonal="self_consistent")
WORKERS = 4


def columns(k: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((N, D))[:, WIDTH * k : WIDTH * (k + 1)]


def rows(k: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((N, D))[6 * k : 6 * (k + 1)]


def by_columns(client: Client | None, **settings: Any) -> Distributed:
    return Distributed(columns, (N, D), (N, WIDTH), client, **settings)


def by_rows(client: Client | None, **settings: Any) -> Distributed:
    return Distributed(rows, (N, D), (6, D), client, **settings)


BOTH = pytest.mark.parametrize("make", [by_columns, by_rows])


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(
        n_workers=WORKERS, threads_per_worker=1, dashboard_address=":0", memory_limit="1GiB"
    ) as found:
        yield found


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    with Client(cluster, set_as_default=False) as found:

        def has_two() -> bool:
            # A nanny whose worker dies while it starts gives up; the cluster replaces it, if asked.
            cluster.scale(WORKERS)
            return len(workers_of(found)) >= 2

        until(has_two)
        yield found


def workers_of(client: Client) -> set[str]:
    return set(client.scheduler_info(n_workers=-1)["workers"])


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def fitted(Phi: Any, max_iter: int = 8, **settings: Any) -> cofem.Posterior:
    return cofem.fit(Phi, Y, noise_std=0.05, method=METHOD, rng=0, max_iter=max_iter, **settings)


def same_bits(one: cofem.Posterior, other: cofem.Posterior) -> bool:
    pairs = [(one.mean, other.mean), (one.variance, other.variance), (one.alpha, other.alpha)]
    return all(np.array_equal(a, b) for a, b in pairs) and one.n_iter == other.n_iter


# --- answers ------------------------------------------------------------------------------------------------


@BOTH
def test_answers_are_those_of_the_matrix(make, client: Client) -> None:
    Phi, dense, rng = make(client), Dense(MATRIX), np.random.default_rng(2)
    x, v, g = rng.standard_normal((3, D)), rng.standard_normal((3, N)), rng.random(D)
    for found, wanted in [
        (Phi.forward(x), dense.forward(x)),
        (Phi.adjoint(v), dense.adjoint(v)),
        (Phi.gram(x), dense.gram(x)),
        (Phi.dual_gram(v, g), dense.dual_gram(v, g)),
        (Phi.columns([0, 12, 11, 12]), dense.columns([0, 12, 11, 12])),
        (Phi.rows([47, 0, 6]), dense.rows([47, 0, 6])),
        (Phi.local_gram([[0, 1], [9, 10], [30, 31]]), dense.local_gram([[0, 1], [9, 10], [30, 31]])),
        (Phi.column_norms(), dense.column_norms()),
        (Phi.abs2().forward(x), dense.abs2().forward(x)),
        (Phi.to_dense(), MATRIX),
        ((Mask([5, 2], N) @ Phi).gram(x), (Mask([5, 2], N) @ dense).gram(x)),
        ((Diagonal(g) @ Phi.H).H.dual_gram(v), (Diagonal(g) @ dense.H).H.dual_gram(v)),
        ((2 * Phi @ Diagonal(g)).dual_gram(v, g), (2 * dense @ Diagonal(g)).dual_gram(v, g)),
    ]:
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12 * np.abs(wanted).max())
    assert Phi.largest_entry() == dense.largest_entry()
    assert Phi.norm == pytest.approx(dense.norm, rel=1e-3)
    assert Phi.stored_entries == N * D
    assert Phi.column_norms_exact


def test_a_product_is_one_round_trip_and_moves_vectors_alone(client: Client) -> None:
    v, x = np.ones((3, N)), np.ones((3, D))
    for Phi, product, moved in [
        (by_columns(client), lambda Phi: Phi.dual_gram(v, x[0]), v.nbytes),
        (by_rows(client), lambda Phi: Phi.gram(x), x.nbytes),
        (by_rows(client), lambda Phi: (Mask([5, 2], N) @ Phi).gram(x), x.nbytes),
        (by_columns(client), lambda Phi: (Phi @ Diagonal(x[0])).dual_gram(v, x[0]), v.nbytes),
    ]:
        Phi.column_norms()
        before, loaded = Phi.traffic.round_trips, Phi.traffic.loaded
        received = Phi.traffic.received
        product(Phi)
        assert Phi.traffic.round_trips == before + 1
        assert Phi.traffic.loaded == loaded
        # One sum from each worker whose chunks are below one node of the tree, a few from others.
        count = len({home.address for home in Phi._engine._homes.values()})
        assert Phi.traffic.received - received <= (count if count in (1, 2, 4) else 8) * moved


@BOTH
def test_a_fit_is_the_one_on_the_matrix(make, client: Client) -> None:
    post, dense = fitted(make(client)), fitted(MATRIX)
    assert post.n_iter == dense.n_iter
    np.testing.assert_allclose(post.mean, dense.mean, atol=1e-8)
    np.testing.assert_allclose(post.variance, dense.variance, rtol=1e-6)


def test_the_noise_is_learned_and_the_posterior_answers(client: Client) -> None:
    Phi = by_columns(client)
    post = cofem.fit(Phi, Y, rng=0)
    dense = cofem.fit(Chunked(MATRIX), Y, rng=0)
    assert post.noise_std == pytest.approx(dense.noise_std, rel=1e-6)
    np.testing.assert_allclose(post.mean, dense.mean, atol=1e-6)
    np.testing.assert_allclose(post.sample(2, rng=0), dense.sample(2, rng=0), atol=1e-4)


def test_dask_arrays_are_distributed(client: Client) -> None:
    array = dask.array.from_array(MATRIX, chunks=(20, 50))
    with client.as_current():
        Phi = as_operator(array)
    assert isinstance(Phi, Distributed)
    assert Phi.layout == "4 chunks of 50 columns"
    np.testing.assert_allclose(Phi @ TRUTH, MATRIX @ TRUTH)
    assert Phi.traffic.round_trips == 1
    np.testing.assert_allclose(as_operator(array) @ TRUTH, MATRIX @ TRUTH)  # on threads


def kinds(k: int) -> Any:
    first = np.random.default_rng(3).integers(-1, 2, (6, 8))
    return [first, scipy.sparse.csr_array(first), Mask([1, 0, 5, 2, 7, 3], 8) @ DCT(8).T, 1j * first][k]


def test_chunks_may_be_matrices_of_any_kind_or_operators(client: Client) -> None:
    matrix = np.concatenate([np.asarray(Dense(kinds(0)).to_dense())] * 2 + [kinds(2).to_dense()], axis=0)
    x = np.arange(8.0)
    for where in (client, None):
        Phi = Distributed(kinds, (18, 8), (6, -1), where)
        np.testing.assert_allclose(Phi.gram(x), matrix.T @ matrix @ x)
        np.testing.assert_allclose(Phi.column_norms(), np.linalg.norm(matrix, axis=0))
        assert Phi.abs2() is None
    stored = Distributed(kinds, (6, 8), (6, -1), client, dtype=np.int8)
    assert stored.dtype == np.float64
    np.testing.assert_array_equal(stored @ x, kinds(0) @ x)
    assert stored.astype(np.float32).forward(x.astype(np.float32)).dtype == np.float32
    with pytest.raises(ChunkError, match=r"chunk 3 of 4 \(rows 18 to 23\) is complex"):
        Distributed(kinds, (24, 8), (6, -1), client, retries=0) @ x
    whole = Distributed(kinds, (24, 8), (6, -1), client, dtype=complex)
    np.testing.assert_allclose(
        whole.H @ (whole @ x), np.concatenate([matrix, kinds(3)]).conj().T @ (whole @ x)
    )


# --- bits ---------------------------------------------------------------------------------------------------


def test_sums_do_not_depend_on_who_adds_what() -> None:
    rng = np.random.default_rng(0)
    for count in (1, 2, 5, 16, 23):
        values = 10.0 ** rng.uniform(-8, 8, (count, 4))
        totals = []
        for parts in (1, 2, 3, count):
            tree = Tree()
            for some in np.array_split(rng.permutation(count), parts):
                part = Tree()
                for k in some.tolist():
                    part.add(k, values[k])
                tree.join(part.nodes)
            totals.append(tree.total(count))
        assert all(np.array_equal(total, totals[0]) for total in totals)
        np.testing.assert_allclose(totals[0], values.sum(axis=0))


# --- when something is lost ---------------------------------------------------------------------------------


class Killer:
    """Kills one worker in each of the first steps of a fit, at a random moment."""

    def __init__(self, client: Client, kills: int) -> None:
        self.client, self.left, self.rng = client, kills, np.random.default_rng(5)
        self.seen = dict.fromkeys(workers_of(client), 0.0)

    def victims(self) -> list[str]:
        """Return whom to choose from: one that dies before its nanny knows it does not come again."""
        present = workers_of(self.client)  # asked once: one more may come at any time
        for address in present:
            self.seen.setdefault(address, time.monotonic())
        return sorted(a for a in present if time.monotonic() - self.seen[a] > 1.5)

    def __call__(self, state: Any) -> None:
        if self.left:
            self.left -= 1
            until(lambda: len(self.victims()) >= 2)
            victim = str(self.rng.choice(self.victims()))
            (pid,) = self.client.run(os.getpid, workers=[victim]).values()
            threading.Timer(self.rng.uniform(0, 0.1), os.kill, (pid, signal.SIGKILL)).start()


@pytest.mark.parametrize("kills", [3, pytest.param(10, marks=pytest.mark.nightly)])
def test_workers_that_are_killed_change_nothing(client: Client, kills: int) -> None:
    wanted = fitted(by_columns(None), tol=0, max_iter=12)
    Phi, killer = by_columns(client, retries=2 * kills), Killer(client, kills)
    found = fitted(Phi, tol=0, max_iter=12, callback=killer)
    assert killer.left == 0
    assert Phi.traffic.lost > 0
    assert Phi.traffic.loaded > 16
    assert same_bits(found, wanted)


def test_a_worker_that_the_scheduler_has_not_missed_yet_is_lost_once(client: Client, monkeypatch) -> None:
    """The scheduler may name a dead worker for a while; its chunks must not be sent there again."""
    wanted, Phi = fitted(by_columns(None)), by_columns(client, retries=1)
    Phi @ TRUTH
    present, before, killed = Phi._engine._workers, None, []

    async def some_time_ago() -> dict[str, Any]:
        return before if killed and time.monotonic() - killed[0] < 1.0 else await present()

    def kill(state: Any) -> None:
        nonlocal before
        if state.iteration == 4:
            before = client.sync(present)
            for pid in client.run(os.getpid, workers=[Phi._engine._homes[0].address]).values():
                os.kill(pid, signal.SIGKILL)
            killed.append(time.monotonic())

    monkeypatch.setattr(Phi._engine, "_workers", some_time_ago)
    assert same_bits(fitted(Phi, callback=kill), wanted)
    assert Phi.traffic.lost == 1


def raises(k: int) -> np.ndarray:
    if k == 7:
        raise OSError("the disk is gone")
    return columns(k)


def test_a_loader_that_raises_is_named(client: Client) -> None:
    Phi = Distributed(raises, (N, D), (N, WIDTH), client, retries=1)
    with pytest.raises(ChunkError, match=r"chunk 7 of 16 \(columns 70 to 79\) .*OSError: the disk is gone"):
        fitted(Phi)
    with pytest.raises(ChunkError, match="chunk 7"):  # again, and not something else
        Phi @ TRUTH
    wrong = Distributed(columns, (N + 1, D), (-1, WIDTH), client, retries=0)
    with pytest.raises(ChunkError, match=r"must have shape \(49, 10\), got \(48, 10\)"):
        wrong @ TRUTH
    failing = dask.array.map_blocks(
        lambda block, block_id: block if block_id[1] else 1 / 0,  # of two that fail, either may be first
        dask.array.ones((4, 6), chunks=(4, 3)),
        dtype=float,
    )
    with pytest.raises(ChunkError, match=r"chunk 0 of 2 .*ZeroDivisionError"):
        Distributed.from_array(failing, client, retries=0) @ np.ones(6)


def hogs(k: int) -> np.ndarray:
    held = []
    for _ in range(18):  # 1.2 GB, where the worker may have 1.07
        held.append(np.ones(2**23))
    time.sleep(2)
    raise AssertionError("nobody stopped it")


def test_a_chunk_that_takes_all_memory_of_its_worker_is_given_up(client: Client) -> None:
    """The nanny, or the system, kills the process; it must not go on forever."""
    Phi = Distributed(hogs, (N, D), (N, D), client, retries=1)
    with pytest.raises(
        ChunkError, match=r"chunk 0 of 1 .* lost its worker 2 times in a row; .* out of memory"
    ):
        Phi @ TRUTH
    np.testing.assert_allclose(by_columns(client) @ TRUTH, MATRIX @ TRUTH)  # the cluster is as good as before


class Flag:
    """A loader that fails once a file is there."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, k: int) -> np.ndarray:
        if self.path.exists():
            raise OSError("the disk is gone")
        return columns(k)


def test_the_state_so_far_is_kept_when_chunks_cannot_be_loaded_again(client: Client, tmp_path: Path) -> None:
    flag = tmp_path / "gone"
    Phi = Distributed(Flag(flag), (N, D), (N, WIDTH), client, retries=1)

    def break_it(state: Any) -> None:
        if state.iteration == 4:
            flag.touch()
            for pid in client.run(os.getpid, workers=[Phi._engine._homes[0].address]).values():
                os.kill(pid, signal.SIGKILL)

    with pytest.warns(cofem.ConvergenceWarning, match="disk is gone"):
        post = fitted(Phi, callback=break_it)
    assert post.status.code is cofem.StatusCode.FAILED
    assert "chunk" in post.status.message
    assert np.isfinite(post.mean).all()
    assert post.n_iter >= 4


def test_a_client_that_is_closed_leaves_the_state_and_the_checkpoint(cluster, tmp_path: Path) -> None:
    wanted = fitted(by_columns(None))
    client = Client(cluster, set_as_default=False)
    client.wait_for_workers(1)

    def close(state: Any) -> None:
        if state.iteration == 4:
            client.close()

    path = tmp_path / "fit.npz"
    settings = dict(checkpoint=path, checkpoint_every="1 steps")
    with pytest.warns(cofem.ConvergenceWarning, match="Dask client is closed"):
        post = fitted(by_columns(client), callback=close, **settings)
    assert post.status.code is cofem.StatusCode.FAILED
    assert post.n_iter == 4
    # On another cluster, with another number of workers, the fit ends with the same bits.
    with (
        LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=":0", processes=False) as other,
        Client(other, set_as_default=False) as again,
    ):
        resumed = fitted(by_columns(again), checkpoint=path, resume=path)
    assert same_bits(resumed, wanted)
    with pytest.raises(ValueError, match="its chunks of Phi was 16 chunks of 10 columns, now it is 8 chunks"):
        fitted(by_rows(None), resume=path)


# --- what is refused ----------------------------------------------------------------------------------------


def test_chunks_that_exceed_the_memory_are_refused_with_figures(client: Client, monkeypatch) -> None:
    huge = Distributed(columns, (100_000, 10_000), (-1, 100), client)
    with pytest.raises(MemoryError, match=r"chunks take 8 GB, and \d workers? with .* may hold .* \(60%\)"):
        huge @ np.ones(10_000)
    monkeypatch.setattr(engines, "available_bytes", lambda: 10**9)
    with pytest.raises(MemoryError, match="this machine has 1 GB of memory left"):
        Distributed(columns, (100_000, 10_000), (-1, 100))


def test_wrong_arguments_are_refused_by_name(client: Client) -> None:
    for wrong, words in [
        (dict(shape=(4,)), "shape must be"),
        (dict(shape=(0, 4)), "shape must have rows and columns"),
        (dict(chunks=5), "chunks must be"),
        (dict(chunks=(2, 3)), "rows or columns, not both"),
        (dict(chunks=((2, 3), -1)), "cover 4"),
        (dict(chunks=(0, -1)), "positive sizes"),
        (dict(retries=-1), "retries must be"),
    ]:
        with pytest.raises(ValueError, match=words):
            Distributed(**(dict(load=columns, shape=(4, 6), chunks=(2, -1)) | wrong))
    for wrong, words in [
        (dict(load=3), "load must be a function"),
        (dict(client="tcp://somewhere"), "client must be a distributed.Client, got str"),
        (dict(dtype=object), "dtype must be one of numbers"),
    ]:
        with pytest.raises(TypeError, match=words):
            Distributed(**(dict(load=columns, shape=(4, 6), chunks=(2, -1)) | wrong))
    array = dask.array.ones((6, 4), chunks=(3, 4))
    with pytest.raises(ValueError, match="unknown sizes"):
        as_operator(array[array[:, 0] > 0])
    with pytest.raises(ValueError, match="Phi must be a matrix"):
        as_operator(dask.array.ones(4))


# --- many fits ----------------------------------------------------------------------------------------------

SHIFTS = [0.0, 0.5, 1.0, 2.0]
TASKS = [{"y": Y + shift * MATRIX[:, 5]} for shift in SHIFTS]


def slow_dictionary() -> np.ndarray:
    return MATRIX


def test_many_fits_are_those_that_run_one_after_the_other(client: Client, tmp_path: Path) -> None:
    settings = dict(noise_std=0.05, method="cofem", max_iter=5)
    here = {done.task: done.posterior for done in cofem.fit_many(TASKS, Phi=MATRIX, rng=3, **settings)}
    assert list(here) == [0, 1, 2, 3]
    alone = cofem.fit(MATRIX, TASKS[2]["y"], rng=np.random.default_rng([3, 2]), **settings)
    assert same_bits(here[2], alone)
    remote = cofem.fit_many(TASKS, Phi=MATRIX, rng=3, client=client, checkpoints=tmp_path, **settings)
    there = {done.task: done.posterior for done in remote}
    assert sorted(there) == [0, 1, 2, 3]
    for task, post in there.items():
        assert same_bits(post, here[task])
        assert post.operator.shape == (N, D)
        np.testing.assert_array_equal(post.sample(1, rng=0), here[task].sample(1, rng=0))
    assert sorted(path.name for path in tmp_path.glob("*.npz")) == [f"task-0000{i}.npz" for i in range(4)]
    # What is done is taken from its checkpoint, and goes on if more steps are asked for.
    more = {
        done.task: done
        for done in cofem.fit_many(
            TASKS,
            Phi=slow_dictionary,
            rng=3,
            client=client,
            checkpoints=tmp_path,
            **(settings | dict(max_iter=6)),
        )
    }
    assert same_bits(
        more[1].posterior,
        cofem.fit(MATRIX, TASKS[1]["y"], rng=np.random.default_rng([3, 1]), **(settings | dict(max_iter=6))),
    )
    assert more[1].posterior.operator is None  # it was made on the worker


def test_a_fit_that_raises_does_not_stop_the_others(client: Client) -> None:
    tasks = [{"y": Y}, {"y": np.full(N, np.nan)}, {"y": Y, "Phi": MATRIX[:, :40]}]
    for where in (client, None):
        done = cofem.fit_many(
            tasks, Phi=MATRIX, noise_std=0.05, max_iter=3, client=where, progress=where is None
        )
        found = {fitted.task: fitted for fitted in done}
        assert isinstance(found[1].error, ValueError)
        assert "y must be finite" in str(found[1].error)
        assert found[1].posterior is None
        assert found[0].error is None
        assert found[2].posterior.mean.shape == (40,)


def test_tasks_that_are_none_are_refused() -> None:
    for wrong, settings, words in [
        ([Y], {}, "tasks must be mappings"),
        ([{"y": Y}], {}, "task 0 has no Phi"),
        ([{"y": Y, "checkpoint": "a.npz"}], {"Phi": MATRIX}, "checkpoint: not for many fits"),
        ([{"y": Y}], {"Phi": MATRIX, "rng": None}, "rng must be an integer"),
    ]:
        with pytest.raises((TypeError, ValueError), match=words):
            cofem.fit_many(wrong, **settings)


def test_many_fits_outlive_a_worker(client: Client) -> None:
    tasks = [{"y": Y + shift * MATRIX[:, 5]} for shift in np.linspace(0, 1, 8)]
    found = cofem.fit_many(tasks, Phi=MATRIX, noise_std=0.05, method="cofem", max_iter=5, client=client)
    first = next(found)
    os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)
    done = {fitted.task: fitted for fitted in (first, *found)}
    assert sorted(done) == list(range(8))
    assert all(fitted.error is None for fitted in done.values())
    wanted = cofem.fit(
        MATRIX, tasks[7]["y"], noise_std=0.05, method="cofem", max_iter=5, rng=np.random.default_rng([0, 7])
    )
    assert same_bits(done[7].posterior, wanted)


def test_large_things_are_not_sent_with_every_fit() -> None:
    """Dask takes an operator for a few bytes, whatever it holds."""
    assert _many._is_small({"noise_std": 0.1, "analysis": "auto"})
    for large in ({"alpha_init": np.ones(2**18)}, {"Phi": Dense(MATRIX)}, {"analysis": Dense(MATRIX)}):
        assert not _many._is_small(large)


def matrix_and_mark(folder: Path) -> np.ndarray:
    """Leave a file that says which process it was, and when; and take a while."""
    (folder / f"{time.time():.3f} {os.getpid()}").touch()
    time.sleep(1.0)
    return MATRIX


@pytest.mark.nightly  # it looks at the clock
@pytest.mark.parametrize("with_each", [2**20, 0])
def test_all_workers_begin_at_once_with_many_fits(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_each: int
) -> None:
    """They waited for the one that has what all fits share: it is sent with each, or goes to all first."""
    monkeypatch.setattr(_many, "SENT_WITH_EACH", with_each)
    workers = len(workers_of(client))
    tasks = [{"Phi": partial(matrix_and_mark, tmp_path), "y": Y} for _ in range(3 * workers)]
    done = list(cofem.fit_many(tasks, client=client, noise_std=0.05, method="cofem", max_iter=2))
    assert all(fitted.error is None for fitted in done)
    marks = sorted(path.name.split() for path in tmp_path.iterdir())
    first = [pid for when, pid in marks if float(when) < float(marks[0][0]) + 0.95]
    assert len(set(first)) == len(first) == workers


def test_scikit_learn_searches_over_the_cluster(client: Client) -> None:
    joblib = pytest.importorskip("joblib")
    search = GridSearchCV(cofem.SBLRegressor(), {"noise_std": [0.05, 1.0]}, cv=3)
    with client.as_current(), joblib.parallel_backend("dask"):
        search.fit(MATRIX[:, :20], Y)
    alone = GridSearchCV(cofem.SBLRegressor(), {"noise_std": [0.05, 1.0]}, cv=3).fit(MATRIX[:, :20], Y)
    assert search.best_params_ == alone.best_params_
    np.testing.assert_allclose(search.best_estimator_.coef_, alone.best_estimator_.coef_)


# --- the command --------------------------------------------------------------------------------------------


def test_recover_has_a_cluster_hold_the_matrix(client: Client, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("Phi.npy", MATRIX)
    np.save("y.npy", Y)
    command = ["recover", "--data", "y.npy", "--noise-std", "0.05", "--max-iter", "5", "--method", "cofem"]
    command += ["--operator", "distributed(Phi.npy)"]
    done = CliRunner().invoke(app, [*command, "--scheduler", client.scheduler.address])
    assert done.exit_code == 0, done.output
    wanted = cofem.fit(MATRIX, Y, noise_std=0.05, method="cofem", max_iter=5, rng=0)
    np.testing.assert_allclose(cofem.load("result.npz").mean, wanted.mean, atol=1e-8)
    done = CliRunner().invoke(app, [*command, "--scheduler", "tcp://127.0.0.1:1", "--force"])
    assert done.exit_code == 2
    assert "tcp://127.0.0.1:1 does not answer" in done.stderr


def test_a_matrix_in_a_file_is_read_in_chunks(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "Phi.npy"
    np.save(path, MATRIX)
    for chunks, words in [((N, 50), "4 chunks of 50 columns"), ((20, -1), "3 chunks of 20 rows")]:
        Phi = Distributed.from_npy(path, client, chunks=chunks)
        assert Phi.layout == words
        np.testing.assert_allclose(Phi @ TRUTH, MATRIX @ TRUTH)
    with pytest.raises(ValueError, match=r"not a matrix in an \.npy file"):
        Distributed.from_npy(tmp_path / "nothing.npy")
    np.save(path, Y)
    with pytest.raises(ValueError, match="must hold a matrix"):
        Distributed.from_npy(path)


# The last one: it leaves one worker.
def test_bits_do_not_depend_on_the_number_of_workers(cluster: LocalCluster, client: Client) -> None:
    wanted = {make: fitted(make(None)) for make in (by_columns, by_rows)}  # threads of this process
    for count in (4, 2, 1):
        cluster.scale(count)
        until(lambda count=count: len(workers_of(client)) == count)
        for make, post in wanted.items():
            Phi = make(client)
            assert same_bits(fitted(Phi), post)
            assert len({home.address for home in Phi._engine._homes.values()}) == count
