"""What the user asked for, checked as far as it does not depend on the problem."""

from __future__ import annotations

import numbers
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cofem._arrays import to_numpy
from cofem.inference.noise.strategy import NoiseStrategy
from cofem.inference.record import Callback
from cofem.operators import Operator
from cofem.priors import PRIORS, Independent, Prior


@dataclass(frozen=True, eq=False)
class Settings:
    """How to fit.

    Attributes
    ----------
    method : str or Method
        As for `cofem.fit`.
    prior : Prior
        Who shares a precision.
    nonnegative : bool
        Whether the coefficients are known not to be negative.
    max_iter : int or None
        Most outer steps; None for the method's own.
    tol : float or None
        Tolerance; None for the default stop rule.
    alpha_init : Any
        Where alpha starts, as the user gave it.
    noise : NoiseStrategy or None
        How the noise is learned, if it is; None to choose by the problem.
    analysis : Any
        What makes the unknown sparse, as the user gave it; None if it is sparse itself.
    prior_given : bool
        Whether the user named the prior.
    auto : bool
        Whether the prior is to be chosen by data that are held out.
    asked : Settings or None
        What the user asked for, where `prior` has been chosen since.
    """

    method: Any
    prior: Prior
    nonnegative: bool
    max_iter: int | None
    tol: float | None
    alpha_init: Any = None
    noise: NoiseStrategy | None = None
    analysis: Any = None
    prior_given: bool = True
    auto: bool = False
    asked: Settings | None = None

    @classmethod
    def checked(cls, **given: Any) -> Settings:
        """Return settings made of what the user gave; raise by argument name."""
        given["auto"] = isinstance(given["prior"], str) and given["prior"] == "auto"
        given["prior"] = None if given["auto"] else given["prior"]
        given["prior_given"] = given["prior"] is not None
        given["prior"] = _check_prior(given["prior"])
        given["nonnegative"] = bool(given["nonnegative"])
        given["max_iter"] = None if given["max_iter"] is None else _check_max_iter(given["max_iter"])
        given["tol"] = None if given["tol"] is None else _check_tol(given["tol"])
        return cls(**given)

    def fingerprint(self) -> dict[str, Any]:
        """Return what decides about the result, besides the problem and the number of steps."""
        names = ("method", "prior", "nonnegative", "tol", "alpha_init", "analysis")
        asked = self if self.asked is None else self.asked
        return {name: getattr(asked, name) for name in names} | ({"prior": "auto"} if asked.auto else {})

    def with_prior(self, prior: Prior, noise: NoiseStrategy | None) -> Settings:
        """Return the settings with a prior that was chosen, and how the noise is known."""
        return replace(self, prior=prior, prior_given=True, noise=noise, auto=False, asked=self)

    def in_analysis(self, operator: Operator) -> Settings:
        """Return the settings of a fit to the same data in analysis form, which was chosen."""
        shape = operator.column_shape
        return replace(self, analysis=shape, prior_given=False, auto=False, asked=self)


def is_auto(method: Any) -> bool:
    """Tell whether the algorithm is left to the library.

    Examples
    --------
    >>> is_auto("auto"), is_auto("em")
    (True, False)
    """
    return isinstance(method, str) and method == "auto"


def check_callback(callback: Any) -> Callback | None:
    """Return the callback, or refuse what cannot be called."""
    if callback is not None and not callable(callback):
        raise TypeError(f"callback must be callable, got {type(callback).__name__}")
    return callback


def _check_prior(prior: Any) -> Prior:
    if prior is None:
        return Independent()
    if isinstance(prior, Prior):
        return prior
    names = ", ".join(f"cofem.{kind.__name__}()" for kind in PRIORS.values())
    raise TypeError(f'prior must be "auto" or one of {names}, got {prior!r}')


def check_rng(rng: Any) -> np.random.Generator:
    """Return the source of randomness."""
    try:
        return np.random.default_rng(rng)
    except (TypeError, ValueError) as error:
        raise TypeError(f"rng must be a seed, a numpy.random.Generator or None, got {rng!r}") from error


def _check_max_iter(max_iter: Any) -> int:
    if isinstance(max_iter, bool) or not isinstance(max_iter, numbers.Integral):
        raise TypeError(f"max_iter must be an integer, got {max_iter!r}")
    if max_iter < 1:
        raise ValueError(f"max_iter must be at least 1, got {max_iter}")
    return int(max_iter)


def _check_tol(tol: Any) -> float:
    if isinstance(tol, bool) or not isinstance(tol, numbers.Real):
        raise TypeError(f"tol must be a number, got {tol!r}")
    if not 0 <= float(tol) < np.inf:
        raise ValueError(f"tol must be non-negative and finite, got {tol}")
    return float(tol)


def check_alpha_init(alpha_init: Any, n_columns: int) -> np.ndarray | None:
    """Return where alpha starts, one number or one for each of the columns."""
    if alpha_init is None:
        return None
    alpha = to_numpy(alpha_init)
    if alpha.dtype.kind not in "uif":
        raise TypeError(f"alpha_init must be real numbers, got {alpha_init!r}")
    if alpha.shape not in ((), (n_columns,)):
        raise ValueError(f"alpha_init must be a number or have shape ({n_columns},), got shape {alpha.shape}")
    if not (np.isfinite(alpha).all() and (alpha > 0).all()):
        raise ValueError("alpha_init must be positive and finite")
    return alpha
