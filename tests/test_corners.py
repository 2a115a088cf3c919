"""Off the beaten track: lists of tasks, rare shapes, systems that say little, solvers that give up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg as sla

import cofem
from cofem import _memory, plotting
from cofem.inference.base import State
from cofem.inference.notes import follow
from cofem.linalg.diagonals.pooled import solve_trace
from cofem.linalg.system import PosteriorSystem
from cofem.operators import (
    DCT,
    Convolution,
    Dense,
    Diagonal,
    Identity,
    Mask,
    Operator,
    Sparse,
    Wavelet,
    block_diag,
    entries,
    hstack,
    vstack,
)
from cofem.operators.blocks import BlockDCT
from cofem.operators.chunked import Chunked
from cofem.operators.squares import Constant

from .problems import dense_case

RNG = np.random.default_rng(0)
PHI = RNG.standard_normal((6, 10))
TALL = RNG.standard_normal((12, 4))


# --- lists of tasks -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("Phi", "y", "settings", "words"),
    [
        ([PHI, PHI], [np.ones(6)], {}, "lists of the same length, got 2 and 1"),
        ([PHI, PHI[:, :9]], [np.ones(6)] * 2, {}, r"as many columns each, got \[9, 10\]"),
        ([PHI, PHI], [np.ones(6), np.ones(5)], {}, r"y\[1\] must have shape \(6,\), got \(5,\)"),
        ([PHI, PHI], [np.ones(6)] * 2, {"sample_weight": np.ones(6)}, "noise of each datum is not known"),
        ([PHI, PHI], [np.ones(6)] * 2, {"noise_std": np.ones(6)}, "noise of each datum is not known"),
    ],
)
def test_lists_that_do_not_match_are_refused(Phi: Any, y: Any, settings: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        cofem.fit(Phi, y, **({"noise_std": 0.1} | settings))


def test_tasks_in_lists_that_share_nothing_are_fits_of_their_own() -> None:
    ys = [PHI @ np.eye(10)[3], (PHI @ np.eye(10)[7])[:5]]
    joint = cofem.fit([PHI, PHI[:5]], ys, noise_std=0.01, method="irls")
    each = [
        cofem.fit(Phi, y, noise_std=0.01, method="irls") for Phi, y in zip([PHI, PHI[:5]], ys, strict=True)
    ]
    np.testing.assert_array_equal(joint.mean, np.stack([post.mean for post in each], axis=1))
    for i in (0, 1, -1):
        np.testing.assert_array_equal(joint.task(i).mean, each[i].mean)
    with pytest.raises(ValueError, match="one of the 2 tasks, got 2"):
        joint.task(2)
    total = joint.log_evidence()
    assert total.value == pytest.approx(sum(post.log_evidence().value for post in each))
    assert total.standard_error == 0


def test_predictions_of_tasks_are_columns() -> None:
    y = np.stack([PHI @ np.eye(10)[3], PHI @ np.eye(10)[7]], axis=1)
    post = cofem.fit(PHI, y, noise_std=0.01, method="irls")
    mean = post.predict(PHI[:3])
    assert mean.shape == (3, 2)
    np.testing.assert_allclose(mean, PHI[:3] @ post.mean)
    with_std, std = post.predict(PHI[:3], return_std=True)
    np.testing.assert_array_equal(with_std, mean)
    assert std.shape == (3, 2)
    assert (std > 0).all()


# --- posterior ----------------------------------------------------------------------------------------


def test_evidence_with_more_data_than_coefficients_is_exact() -> None:
    y = TALL @ np.array([1.0, 0.0, -2.0, 0.0]) + 0.1 * RNG.standard_normal(12)
    post = cofem.fit(TALL, y, noise_std=0.1, method="em")
    covariance = 0.01 * np.eye(12) + TALL @ np.diag(1 / post.alpha) @ TALL.T
    exact = -0.5 * (
        y @ np.linalg.solve(covariance, y) + np.linalg.slogdet(covariance)[1] + 12 * np.log(2 * np.pi)
    )
    found = post.log_evidence()
    assert found.value == pytest.approx(exact, rel=1e-9)
    assert found.standard_error == 0


def test_posterior_solves_that_run_out_of_steps_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    case = dense_case(64, f=2, density=0.05, noise_std=0.01)
    post = cofem.fit(case.Phi, case.y, noise_std=case.noise_std, method="irls")
    original = PosteriorSystem.solve

    def impatient(system: PosteriorSystem, v: Any, b: Any, *, tol: float, max_iter: int) -> Any:
        return original(system, v, b, tol=tol, max_iter=1)

    monkeypatch.setattr(PosteriorSystem, "solve", impatient)
    monkeypatch.setattr("cofem.posterior.solver.is_cheaper", lambda operator, count: False)
    factored = post.sample(1, rng=0)  # by a factor, without a word
    monkeypatch.setattr("cofem.posterior.solver.is_small", lambda operator: False)
    with pytest.warns(cofem.ConvergenceWarning, match="posterior solves are inexact"):
        inexact = post.sample(1, rng=0)
    monkeypatch.undo()
    exact = post.sample(1, rng=0)
    assert np.linalg.norm(factored - exact) < 1e-4 * np.linalg.norm(exact - post.mean)
    assert np.linalg.norm(inexact - exact) > 1e-4 * np.linalg.norm(exact - post.mean)


# --- methods ------------------------------------------------------------------------------------------


def test_a_method_that_fails_at_its_end_keeps_the_last_state() -> None:
    class Clumsy(cofem.EM):
        def finish(self, problem: Any, state: State, ended: Any, rng: Any) -> Any:
            raise RuntimeError("stumbled")

    y = PHI @ np.eye(10)[3]
    with pytest.warns(cofem.ConvergenceWarning, match="final accuracy was not reached"):
        post = cofem.fit(PHI, y, noise_std=0.1, method=Clumsy())
    assert post.status.code is cofem.StatusCode.FAILED
    assert "RuntimeError: stumbled" in post.status.message
    np.testing.assert_array_equal(post.mean, cofem.fit(PHI, y, noise_std=0.1, method="em").mean)


def test_first_step_that_is_singular_names_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: Any, **named: Any) -> Any:
        raise np.linalg.LinAlgError("not positive definite")

    monkeypatch.setattr("cofem.inference.irls.safe_cholesky", fails)
    with pytest.raises(ValueError, match=r"noise_std = 0\.1 is too small for method='irls'"):
        cofem.fit(PHI, np.ones(6), noise_std=0.1, method="irls")


def test_seq_computes_the_norms_that_the_operator_only_estimates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "_is_small", lambda operator: False)  # or it would be made dense
    own = sla.LinearOperator((6, 10), matvec=lambda x: PHI @ x, rmatvec=lambda y: PHI.T @ y, dtype=float)
    y = PHI @ np.eye(10)[3]
    assert not cofem.as_operator(own).column_norms_exact
    mean = cofem.fit(own, y, noise_std=0.01, method="seq").mean
    np.testing.assert_allclose(mean, cofem.fit(PHI, y, noise_std=0.01, method="seq").mean, atol=1e-9)


def test_noise_of_a_sparse_matrix_is_learned_from_its_rows() -> None:
    rng = np.random.default_rng(5)
    Phi = scipy.sparse.random_array((150, 200), density=0.2, rng=rng, data_sampler=rng.standard_normal)
    z = np.zeros(200)
    z[:5] = 1
    y = Phi @ z + 0.05 * rng.standard_normal(150)
    sparse = cofem.fit(Phi, y, rng=0, method="irls")
    assert sparse.noise_std == pytest.approx(0.05, rel=0.25)
    assert sparse.noise_std == pytest.approx(cofem.fit(Phi.toarray(), y, rng=0, method="irls").noise_std)


@pytest.mark.parametrize(
    ("error", "words", "settings"),
    [
        (TypeError, "alpha_init must be real numbers", {"alpha_init": 1j}),
        (ValueError, "groups must be a positive block size", {"prior": cofem.Block(0)}),
        (TypeError, "groups must be a block size, labels or a list", {"prior": cofem.Block(1.5)}),
        (ValueError, "groups as labels must be integers", {"prior": cofem.Block(np.ones(10))}),
        (ValueError, r"groups\[1\] must be a non-empty list", {"prior": cofem.Block([[0, 1], []])}),
        (ValueError, r"groups\[0\] must hold indices from 0 to 9", {"prior": cofem.Block([[10], [1]])}),
    ],
)
def test_bad_settings_are_refused_by_name(error: type[Exception], words: str, settings: dict) -> None:
    with pytest.raises(error, match=words):
        cofem.fit(PHI, np.ones(6), noise_std=0.1, **settings)


@pytest.mark.parametrize("coupling", [-0.1, 1.1, "much"])
def test_coupling_out_of_range_is_refused(coupling: Any) -> None:
    with pytest.raises(ValueError, match="coupling must be between 0 and 1"):
        cofem.PatternCoupled(coupling)


# --- operators ----------------------------------------------------------------------------------------


def test_groups_follow_sums_products_and_stacks() -> None:
    wavelet = Wavelet(16, "haar")
    labels = wavelet.T.groups
    assert labels is not None
    scaled = wavelet.T @ Diagonal(np.arange(1.0, 17.0))
    for same in (-wavelet.T, wavelet.T + wavelet.T, vstack([wavelet.T, 2 * wavelet.T]), scaled):
        np.testing.assert_array_equal(same.groups, labels)
    np.testing.assert_array_equal((Diagonal(np.ones(16)) @ wavelet).row_groups, labels)
    np.testing.assert_array_equal((wavelet + wavelet).row_groups, labels)
    assert (wavelet.T + DCT(16)).groups is None
    assert (Diagonal(np.ones(16)) @ Identity(16)).groups is None


def test_blocks_of_the_cosine_transform_name_frequencies() -> None:
    operator = BlockDCT((4, 4), 2)
    np.testing.assert_array_equal(
        operator.row_groups if operator.groups is None else operator.groups,
        np.tile([[0, 1], [2, 3]], (2, 2)).ravel(),
    )
    assert repr(operator).startswith("<BlockDCT((4, 4), 2)")
    with pytest.raises(ValueError, match=r"block must divide every length of shape \(6,\), got 4"):
        BlockDCT(6, 4)


def test_constant_matrix() -> None:
    operator = Constant(-2.0, (3, 5))
    dense = np.full((3, 5), -2.0)
    np.testing.assert_array_equal(operator.to_dense(), dense)
    assert operator.norm == pytest.approx(np.linalg.norm(dense, 2))
    squares = operator.abs2()
    assert squares is not None
    np.testing.assert_array_equal(squares.to_dense(), dense**2)


@pytest.mark.parametrize("make", [block_diag, hstack, vstack])
@pytest.mark.parametrize("parts", [[], [np.eye(2)]])
def test_joining_what_is_no_operator_is_refused(make: Any, parts: list) -> None:
    with pytest.raises(TypeError, match="must be a non-empty sequence of operators"):
        make(parts)


def test_sparse_operator_of_a_dense_array_is_refused() -> None:
    with pytest.raises(TypeError, match="must be a SciPy sparse matrix or array, got ndarray"):
        Sparse(np.eye(2))


def test_norm_of_an_operator_that_gives_nan_is_refused() -> None:
    class Broken(Operator):
        def __init__(self) -> None:
            super().__init__((4, 4))

        def _forward(self, x: np.ndarray) -> np.ndarray:
            return np.nan * x

        _adjoint = _forward

    with pytest.raises(FloatingPointError, match="Phi gave values that are not finite"):
        Broken().norm  # noqa: B018 (computed when asked for)


def test_products_with_matrices_follow_scipys_names() -> None:
    matrix = RNG.standard_normal((10, 3))
    np.testing.assert_allclose(Dense(PHI).matmat(matrix), PHI @ matrix)
    np.testing.assert_allclose(Mask([1, 0], 10).matmat(matrix), matrix[[1, 0]])


# --- the machine --------------------------------------------------------------------------------------


def test_memory_where_the_system_says_less(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_file(path: Path, *arguments: Any) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", no_file)
    pages = {"SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(_memory.os, "sysconf", pages.__getitem__)
    assert _memory.available_bytes() == 4096000

    def unknown(name: str) -> int:
        raise ValueError(name)

    monkeypatch.setattr(_memory.os, "sysconf", unknown)
    assert _memory.available_bytes() is None


def test_bytes_in_words() -> None:
    assert [_memory.describe_bytes(n) for n in (12, 999.6, 2.5e6, 3e13)] == [
        "12 B",
        "1 kB",
        "2.5 MB",
        "30 TB",
    ]


def test_a_panel_of_uncertainty_alone_is_drawn() -> None:
    display = plotting.ImageDisplay({plotting.ImageDisplay.UNCERTAINTY: np.full((4, 4), 0.1)}).plot()
    assert [ax.get_title() for ax in display.ax_] == ["standard deviation"]


def test_many_panels_are_drawn_in_rows() -> None:
    def rows(count: int) -> list[int]:
        panels = {f"{i}": np.eye(3) for i in range(count - 1)} | {"of both, standard deviation": np.eye(3)}
        display = plotting.ImageDisplay(panels).plot()
        assert display.ax_[-1].images[0].get_cmap().name == "magma"
        grid = [ax.get_subplotspec() for ax in display.ax_]
        assert len(grid) == count
        return [sum(place.rowspan.start == row for place in grid) for row in range(grid[-1].rowspan.stop)]

    assert [rows(count) for count in (3, 4, 5, 9)] == [[3], [2, 2], [3, 2], [3, 3, 3]]


def test_saving_what_was_not_drawn_says_so(tmp_path: Path) -> None:
    display = plotting.RecoveryDisplay(np.ones(2), np.ones(2))
    with pytest.raises(RuntimeError, match="call plot"):
        display.save(tmp_path / "nothing.png")


def test_column_norms_are_the_callers_own() -> None:
    chunked = Chunked(np.ones((4, 3)), rows=2)
    norms = chunked.column_norms()
    norms[:] = 7
    assert chunked.column_norms().tolist() == [2.0, 2.0, 2.0]


# --- dictionaries that are zero, or close to what the precision holds ------------------------------------


@pytest.mark.parametrize("method", ["auto", "em", "irls", "cofem", "vi", "seq"])
@pytest.mark.parametrize("n_rows", [10, 40])
def test_a_dictionary_of_zeros_explains_nothing(method: str, n_rows: int) -> None:
    Phi = 0 * (Mask(np.arange(n_rows), 64) @ DCT(64).T)
    y = np.random.default_rng(0).standard_normal(n_rows)
    post = cofem.fit(Phi, y, noise_std=0.1, method=method)
    assert not post.mean.any()
    assert np.isfinite(post.std).all()
    with pytest.raises(ValueError, match="Phi must not be zero"):
        cofem.fit(Phi, y, noise_std=0.1, analysis=64)


@pytest.mark.parametrize("method", ["em", "irls", "cofem", "vi", "seq", "amp"])
@pytest.mark.parametrize("decades", [16, 20, 28])
def test_columns_many_decades_apart_in_single_precision(method: str, decades: int) -> None:
    rng = np.random.default_rng(decades)
    size = 10.0 ** np.linspace(-decades / 2, decades / 2, 40)
    Phi, z = (rng.standard_normal((60, 40)) * size).astype(np.float32), np.zeros(40)
    z[::7] = 1 / size[::7]
    y = (Phi @ z + 0.1 * rng.standard_normal(60)).astype(np.float32)
    post = cofem.fit(Phi, y, noise_std=0.1, method=method, rng=0)
    same = cofem.fit(Phi.astype(float), y.astype(float), noise_std=0.1, method=method, rng=0)
    assert np.isfinite(post.variance).all()
    assert np.linalg.norm((post.mean - same.mean) * size) < 1e-3 * np.linalg.norm(same.mean * size)
    np.testing.assert_allclose(post.variance, same.variance, rtol=0.01)
    assert "float64" in str(post.status)


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_columns_that_no_datum_sees_divide_nothing_by_zero() -> None:
    kernel = np.exp(-0.5 * (np.arange(-6, 7) / 1.5) ** 2)
    Phi = Mask(np.arange(20), 96) @ Convolution(kernel, 96)
    z = np.zeros(96)
    z[[5, 11]] = 1.0
    y = Phi @ z + 1e-3 * np.random.default_rng(0).standard_normal(20)
    post = cofem.fit(Phi, y, noise_std=1e-3, method=cofem.CoFEM(diagonal="pooled"), rng=0)
    assert np.isfinite(post.std).all()


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_traces_too_small_for_the_precision_divide_nothing_by_zero(precision: str) -> None:
    for strength in ([1e-30, 1e-37], [1e37, 1e-37], [1e37, 1e37]):
        for gamma in (1e-30, 0.5, 1.9):
            for largest in (1e-12, 1e16):
                c = solve_trace(np.array(strength, precision), gamma, largest)
                assert 0 <= c <= largest * (1 + 1e-9)


def test_twins_and_a_noise_below_rounding_say_what_to_do_on_any_library() -> None:
    torch = pytest.importorskip("torch")
    Phi = np.repeat(np.random.default_rng(0).standard_normal((80, 30)), 2, axis=1)
    for make in (np.asarray, torch.asarray):
        with pytest.raises(ValueError, match=r"noise_std = 1e-08 is too small .* use a larger one$"):
            cofem.fit(make(Phi), make(Phi[:, 0]), noise_std=1e-8, method="cofem", rng=0)


# --- weights that were made of the data ------------------------------------------------------------------


def counts(seed: int) -> tuple[Operator, np.ndarray, np.ndarray]:
    """Photons behind a blur, and how many are expected."""
    rng = np.random.default_rng(seed)
    kernel = np.exp(-0.5 * (np.arange(-8, 9) / 2) ** 2)
    Phi = hstack([Convolution(kernel / kernel.sum(), 200), Dense(np.ones((200, 1)))])
    z = np.zeros(201)
    z[rng.choice(200, 8, replace=False)], z[200] = rng.uniform(50, 200, 8), 4.0
    rate = Phi @ z
    return Phi, rng.poisson(rate).astype(float), rate


def test_weights_that_were_made_of_the_data_are_warned_about() -> None:
    Phi, y, rate = counts(0)
    with pytest.warns(cofem.ReliabilityWarning, match="sample_weight was made of y itself"):
        trapped = cofem.fit(Phi, y, sample_weight=1 / np.maximum(y, 1))
    assert not trapped.converged
    with pytest.warns(cofem.ReliabilityWarning, match="noise_std was made of y itself: .* root of post"):
        cofem.fit(Phi, y, noise_std=np.sqrt(np.maximum(y, 1)))
    first = cofem.fit(Phi, y)
    again = cofem.fit(Phi, y, sample_weight=1 / np.maximum(first.predict(), 1))
    assert np.linalg.norm(Phi @ again.mean - rate) < 0.8 * np.linalg.norm(Phi @ trapped.mean - rate)
    for post in (first, again):
        assert "made of y" not in str(post.status)


@pytest.mark.parametrize("seed", range(20))
def test_weights_from_elsewhere_are_not_taken_for_the_datas(seed: int) -> None:
    rng = np.random.default_rng(seed)
    _, y, rate = counts(seed)
    curve = np.exp(-np.linspace(0, 5, 100))
    assert follow(1 / np.maximum(y, 1), y)
    assert follow(1 / np.sqrt(y + 0.5), y)
    assert not follow(1 / rate, y)
    assert not follow(rng.uniform(0.5, 1, 200), y)
    assert not follow(np.ones(200), y)
    assert not follow(np.where(y > 50, 0.1, 1.0), y)
    assert not follow(1 / curve, curve * (1 + 1e-6 * rng.standard_normal(100)))
    assert not follow(np.maximum(y, 1), y)
