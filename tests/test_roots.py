"""The root finder, and the two equations that are solved with it, against SciPy's bracketing one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq

from cofem.linalg.diagonals.pooled import solve_trace
from cofem.linalg.diagonals.self_consistent import Spectrum, solve_tau
from cofem.linalg.roots import newton_root

seeds = st.integers(0, 2**32 - 1)


def reference(function, low, high):
    """Root of an increasing function; None where it is positive already at `low`."""
    if function(high) <= 0:
        return high
    return None if function(low) > 0 else brentq(function, low, high, xtol=1e-12)


@given(seeds)
def test_the_self_consistent_equation_is_solved_from_any_guess(seed):
    rng = np.random.default_rng(seed)
    alpha = np.exp(rng.normal(0, rng.uniform(0, 20), rng.integers(1, 200)))
    beta = np.exp(rng.normal(0, 8))
    nodes = np.append(np.exp(rng.normal(0, 3)), np.exp(rng.normal(0, 3, 4)) * (rng.random(4) < 0.7))
    weights = rng.dirichlet(np.ones(5))
    guess = rng.choice([None, np.exp(rng.normal(0, 5))])

    def excess(log_tau):
        inverse = 1 / (alpha + np.exp(log_tau))
        omega = np.mean(alpha * inverse) / inverse.mean()
        return np.sum(weights / (omega + beta * nodes)) / inverse.mean() - 1

    largest = np.log(beta * nodes.max())
    wanted = reference(excess, largest - 100, largest)
    tau = solve_tau(alpha, Spectrum(nodes, weights), beta, guess)
    assert tau == (0.0 if wanted is None else pytest.approx(np.exp(wanted), rel=1e-3))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("beta", [1.0, 1e4, 1e8, 1e10, 1e12, 1e14, 1e20])
def test_the_self_consistent_equation_is_solved_where_the_data_are_precise(beta, dtype):
    spectrum = Spectrum(np.array([1.0, 0.0]), np.array([0.25, 0.75]))
    alpha = np.ones(2**16, dtype)
    # For equal alpha, 1 / (alpha + tau) is the mean of 1 / (alpha + beta lambda).
    wanted = 1 / (0.25 / (1 + beta) + 0.75) - 1
    for guess in (None, 0.01 * wanted, 100 * wanted):
        assert solve_tau(alpha, spectrum, beta, guess) == pytest.approx(wanted, rel=1e-3)


@given(seeds, st.sampled_from([np.float32, np.float64]))
def test_the_trace_equation_is_solved(seed, dtype):
    rng = np.random.default_rng(seed)
    strength = np.exp(rng.normal(0, rng.uniform(0, 10), rng.integers(1, 200)))
    gamma = rng.uniform(-0.05, 1.05) * strength.size
    largest = np.exp(rng.normal(0, 8))
    found = solve_trace(strength.astype(dtype), gamma, largest)
    if gamma <= 0:
        assert found == 0
        return
    wanted = reference(
        lambda log_c: np.sum(np.exp(log_c) * strength / (1 + np.exp(log_c) * strength)) - gamma,
        np.log(largest) - 200,
        np.log(largest),
    )
    assert found == pytest.approx(np.exp(wanted), rel=1e-4)


def test_columns_of_zeros_and_equal_strengths_have_a_trace():
    assert solve_trace(np.zeros(3), 0.1, 1e4) == 0
    # As in the first step of a fit, where one Newton step from above would lead far below what float32 holds.
    equal = np.full(4096, 0.4, np.float32)
    assert solve_trace(equal, 1024.0, 2500.0) == pytest.approx(1 / 3 / 0.4, rel=1e-4)


@pytest.mark.parametrize("slope", [0.0, -1.0, 1e-9, np.nan])
def test_a_slope_of_no_use_is_not_followed(slope):
    found = newton_root(lambda x: (np.tanh(x - 0.3), slope), 5.0, -10.0, 10.0, close=1e-3)
    assert found == pytest.approx(0.3, abs=1e-3)


def test_the_last_short_step_costs_no_look():
    looks = []

    def function(x):
        looks.append(x)
        return np.log(x), 1 / x

    assert newton_root(function, 1.008, 0.1, 10.0) == pytest.approx(1.0, abs=5e-5)
    assert looks == [1.008]
