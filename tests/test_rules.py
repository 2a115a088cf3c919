"""Rules inside the loop, each against its formula: noise, leaps that are undone, messages, units."""

from __future__ import annotations

import numpy as np
import pytest

import cofem
from cofem.inference import base
from cofem.inference.base import State
from cofem.inference.noise.held_out import split
from cofem.inference.noise.rules import MOST_SPREAD, FromEvidence, FromHeldOut
from cofem.inference.problem import Problem

from .problems import dense_case, dictionary

RNG = np.random.default_rng(3)
PHI = RNG.standard_normal((20, 8))
MEAN = RNG.standard_normal(8)
Y = PHI @ MEAN + 0.5 * RNG.standard_normal(20)
HELD_OUT = np.array([1, 4, 5, 11, 17])


def held_out(noise_var: float) -> tuple[Problem, FromHeldOut, float]:
    """Return the problem of the rows that are seen, the rule, and the error at the others."""
    seen, rule = split(Problem(dictionary(PHI), Y, 1.0), HELD_OUT, start=1e-3)
    error = float(np.mean((Y - PHI @ MEAN)[HELD_OUT] ** 2))
    return seen.with_noise(noise_var), rule, error


def state(spread: float) -> State:
    """Return a state whose variances add `spread` to each held-out prediction, on average."""
    energy = float(np.sum(PHI[HELD_OUT] ** 2)) / len(HELD_OUT)
    return State(np.ones(8), MEAN, np.full(8, spread / energy))


def test_held_out_noise_is_the_error_less_the_spread() -> None:
    seen, rule, error = held_out(noise_var=100.0)
    assert seen.n_rows == 15
    for share in (0.0, 0.1, 0.25):
        found = rule(seen, state(share * error), settled=True)
        assert found == pytest.approx((1 - share) * error)


def test_spread_explains_a_part_of_the_held_out_error_at_most() -> None:
    seen, rule, error = held_out(noise_var=100.0)
    assert rule(seen, state(50 * error), settled=True) == pytest.approx((1 - MOST_SPREAD) * error)


def test_held_out_noise_is_no_larger_than_the_data() -> None:
    seen, rule, _ = held_out(noise_var=1e9)
    far_off = State(np.ones(8), 1e3 * MEAN, np.zeros(8))
    assert rule(seen, far_off, settled=True) == pytest.approx(np.mean(Y[HELD_OUT] ** 2))


def test_held_out_noise_falls_at_any_time_and_rises_only_when_settled() -> None:
    seen, rule, error = held_out(noise_var=1e-6)
    assert rule(seen, state(0.0), settled=False) == 1e-6
    assert rule(seen, state(0.0), settled=True) == pytest.approx(error)
    above = seen.with_noise(100.0)
    assert rule(above, state(0.0), settled=False) == pytest.approx(error)


def test_noise_from_the_evidence_counts_the_parameters_that_the_data_determine() -> None:
    problem = Problem(dictionary(PHI), Y, 1.0)
    variance = np.linspace(0.1, 0.8, 8)
    gamma = np.sum(1 - variance)  # alpha is one
    misfit = np.sum((Y - PHI @ MEAN) ** 2)
    found = FromEvidence()(problem, State(np.ones(8), MEAN, variance), settled=True)
    assert found == pytest.approx(misfit / (20 - gamma))


def test_leaps_that_overshoot_are_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    case = dense_case(64, f=2, density=0.05, noise_std=0.01)
    settings = dict(noise_std=case.noise_std, max_iter=12, tol=0.0)

    def mean(accelerate: bool) -> np.ndarray:
        return cofem.fit(case.Phi, case.y, method=cofem.EM(accelerate=accelerate), **settings).mean

    plain, fast = mean(False), mean(True)
    assert np.linalg.norm(fast - plain) > 1e-6 * np.linalg.norm(plain)
    monkeypatch.setattr(base, "overshot", lambda *arguments: True)
    np.testing.assert_allclose(mean(True), plain, rtol=1e-9, atol=1e-12)


def test_messages_that_have_settled_are_the_exact_mean() -> None:
    rng = np.random.default_rng(4)
    Phi = rng.standard_normal((200, 400)) / 200**0.5
    alpha, y = np.full(400, 2.0), rng.standard_normal(200)
    problem = Problem(dictionary(Phi), y, 0.1)
    moments = cofem.AMP(inner_steps=300).first_expectation(problem, alpha, rng)
    exact = np.linalg.inv(Phi.T @ Phi / 0.1 + np.diag(alpha))
    np.testing.assert_allclose(moments.mean, exact @ Phi.T @ y / 0.1, atol=1e-8)
    np.testing.assert_allclose(moments.variance, np.diag(exact), rtol=0.1)


@pytest.mark.parametrize("method", ["em", "irls", "seq", "amp", "vi", "cofem"])
@pytest.mark.parametrize(("data", "dictionary"), [(2.0**30, 1.0), (1.0, 2.0**-20), (2.0**-10, 2.0**15)])
def test_every_result_is_in_the_users_units(method: str, data: float, dictionary: float) -> None:
    case = dense_case(64, f=2, density=0.05, noise_std=0.01)

    def solve(data: float, dictionary: float) -> dict[str, np.ndarray]:
        seen: dict[str, np.ndarray] = {}

        def look(snapshot) -> None:
            for name in ("mean", "variance", "alpha", "noise_std"):
                seen[f"seen {name}"] = getattr(snapshot, name)

        post = cofem.fit(
            dictionary * case.Phi,
            data * case.y,
            noise_std=data * case.noise_std,
            method=method,
            rng=0,
            max_iter=10,
            callback=look,
        )
        return seen | {
            name: getattr(post, name) for name in ("mean", "variance", "std", "alpha", "noise_std")
        }

    unit = data / dictionary
    units = {"mean": unit, "variance": unit**2, "std": unit, "alpha": unit**-2, "noise_std": data}
    one, other = solve(1.0, 1.0), solve(data, dictionary)
    # Powers of two do not round, but CG and the fast variances stop where their tolerances are met.
    rtol = 0.05 if method == "cofem" else 1e-6
    for name, value in one.items():
        factor = units[name.removeprefix("seen ")]
        np.testing.assert_allclose(other[name], factor * np.asarray(value), rtol=rtol, atol=0, err_msg=name)
