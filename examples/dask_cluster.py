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

# sphinx_gallery_thumbnail_path = '../examples/figures/thumbnails/dask_cluster.png'

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from _common import BLUE, nrmse, save, save_curves, start_on_cluster
from distributed import Client, LocalCluster
from matplotlib.figure import Figure

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
    out, address = start_on_cluster(__doc__)
    if address is not None:
        with Client(address) as client:
            run(client, out)
        return
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        run(client, out)


# %%
# Fit on it
# ---------
# One dictionary on all workers, then many small fits.


def run(client: Client, out: Path) -> None:
    """Fit on a cluster, and many small fits; draw what the first one found."""
    Phi = Distributed(load, (N, D), (N, WIDTH), client)
    rng = np.random.default_rng(1)
    truth = np.zeros(D)
    truth[rng.choice(D, 40, replace=False)] = rng.standard_normal(40)
    y = Phi @ truth + 0.01 * rng.standard_normal(N)

    start = time.perf_counter()
    post = cofem.fit(Phi, y, noise_std=0.01, rng=0)
    seconds, traffic = time.perf_counter() - start, Phi.traffic
    print(f"{Phi}: {post.n_iter} steps in {seconds:.1f} s, NRMSE {nrmse(post.mean, truth):.2%}")
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
    draw(truth, post, out)


# %%
# What it found
# -------------
# Chunks of the dictionary are told apart by their ground; the client has never held one.


def draw(truth: np.ndarray, post: cofem.Posterior, out: Path) -> None:
    """Draw the coefficients over the chunks that their columns belong to."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    ax = figure.subplots()
    for k in range(0, CHUNKS, 2):
        ax.axvspan(k * WIDTH, (k + 1) * WIDTH, color="0.93", lw=0)
    found, (spikes,) = post.support(), np.nonzero(truth)
    ax.vlines(spikes, 0, truth[spikes], color="0.6", lw=3, label="truth")
    ax.errorbar(
        found,
        post.mean[found],
        1.96 * post.std[found],
        fmt="o",
        ms=4,
        color=BLUE,
        label="cofem, 95 % intervals",
    )
    ax.axhline(0, color="0.3", lw=0.5)
    ax.set(xlabel="column; a stripe for each chunk", ylabel="coefficient", xlim=(0, D))
    ax.legend(frameon=False, ncols=2, loc="lower left", bbox_to_anchor=(0, 1))
    save(figure, out / "dask_cluster.png", dpi=80)
    save_curves(ax, out / "thumbnails/dask_cluster.png", xlim=(0, 6 * WIDTH))


if __name__ == "__main__":
    main()
