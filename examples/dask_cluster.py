"""A dictionary on a Dask cluster
==============================

A dictionary on the workers of a Dask cluster, started in two terminals of a laptop.

Task: find 40 of 8192 columns of a Gaussian dictionary from 2048 noisy data, where no process but the workers
holds the dictionary. Then a worker may be stopped while the fit runs: the result has the same bits.

Start a scheduler in one terminal and two workers in another, from the folder of the repository::

    dask scheduler
    dask worker tcp://127.0.0.1:8786 --nworkers 2 --nthreads 1

and in a third one this script::

    python examples/dask_cluster.py --scheduler tcp://127.0.0.1:8786

Without ``--scheduler`` it starts a cluster of two workers by itself.

Needs: dask, distributed (``pip install "cofem[dask]"``).
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from distributed import Client, LocalCluster

import cofem
from cofem.operators import Distributed

N, D, CHUNKS = 2048, 8192, 16
WIDTH = D // CHUNKS


# %%
# The chunks
# ----------
# Each is made where it is kept.


def load(k: int) -> np.ndarray:
    """Return columns of the dictionary; this runs on a worker. It could read a file as well."""
    return np.random.default_rng([0, k]).standard_normal((N, WIDTH)) / N**0.5


# %%
# The cluster
# -----------
# One that runs already, or one of two local processes.


def main() -> None:
    """Run the example."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scheduler", help="address of a scheduler; by default a cluster is started here")
    address = parser.parse_args().scheduler
    if address is not None:
        run(Client(address))
        return
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster:
        run(Client(cluster))


# %%
# Fit on it
# ---------
# One dictionary on all workers, then many small fits.


def run(client: Client) -> None:
    """Fit on a cluster, and many small fits."""
    Phi = Distributed(load, (N, D), (N, WIDTH), client)
    rng = np.random.default_rng(1)
    truth = np.zeros(D)
    truth[rng.choice(D, 40, replace=False)] = rng.standard_normal(40)
    y = Phi @ truth + 0.01 * rng.standard_normal(N)

    start = time.perf_counter()
    post = cofem.fit(Phi, y, noise_std=0.01, rng=0)
    seconds, traffic = time.perf_counter() - start, Phi.traffic
    error = np.linalg.norm(post.mean - truth) / np.linalg.norm(truth)
    print(f"{Phi}: {post.n_iter} steps in {seconds:.1f} s, NRMSE {error:.2%}")
    sent, received = traffic.sent / 1e6, traffic.received / 1e6
    print(f"{traffic.round_trips} round trips, {sent:.1f} MB sent, {received:.1f} MB received")
    print(
        f"workers lost on the way: {traffic.lost}; chunks loaded: {traffic.loaded} ({CHUNKS} without losses)"
    )

    small = rng.standard_normal((100, 300))
    tasks = [{"y": small[:, j] + 0.1 * rng.standard_normal(100)} for j in range(8)]
    for done in cofem.fit_many(tasks, Phi=small, noise_std=0.1, client=client):
        assert done.posterior is not None
        print(f"task {done.task}: largest coefficient at {int(np.argmax(np.abs(done.posterior.mean)))}")


if __name__ == "__main__":
    main()
