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


@given(seeds)
def test_the_trace_equation_is_solved(seed):
    rng = np.random.default_rng(seed)
    strength = np.exp(rng.normal(0, rng.uniform(0, 20), rng.integers(1, 200)))
    gamma = rng.uniform(-0.05, 1.05) * strength.size
    largest = np.exp(rng.normal(0, 8))
    wanted = reference(
        lambda log_c: np.sum(np.exp(log_c) * strength / (1 + np.exp(log_c) * strength)) - gamma,
        np.log(largest) - 200,
        np.log(largest),
    )
    found = solve_trace(strength, gamma, largest)
    assert found == (0.0 if wanted is None else pytest.approx(np.exp(wanted), rel=1e-4))


@pytest.mark.parametrize("slope", [0.0, -1.0, 1e-9, np.nan])
def test_a_slope_of_no_use_is_not_followed(slope):
    found = newton_root(lambda x: (np.tanh(x - 0.3), slope), 5.0, -10.0, 10.0, close=1e-3)
    assert found == pytest.approx(0.3, abs=1e-3)


def test_the_last_short_step_costs_no_look():
    looks = []

    def function(x):
        looks.append(x)
        return np.log(x), 1 / x

    assert newton_root(function, 1.02, 0.1, 10.0) == pytest.approx(1.0, abs=5e-4)
    assert looks == [1.02]
