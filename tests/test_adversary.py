"""The standing adversary of `make nightly`: 60 of its cases, and that it notices what is wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cofem

from .adversary import KINDS, analysis, attack, name_of, synthesis

#: In every run: each kind at least once.
CASES = 60


def test_every_kind_is_among_the_cases_of_every_run() -> None:
    assert len(KINDS) <= CASES


@pytest.mark.parametrize("number", range(CASES), ids=lambda number: f"{number}-{name_of(number)}")
def test_a_case_is_not_silently_wrong(number: int) -> None:
    case, faults = attack(number)
    assert faults == [], case.words


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (dict(mean=1.01), "mean off"),
        (dict(variance=2.0), "std of"),
    ],
    ids=["mean", "variances"],
)
def test_it_notices_what_is_wrong(
    spoil: dict[str, float], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = next(
        case
        for case in (synthesis.draw("dense", number) for number in range(300))
        if case.settings["method"] in ("irls", "em") and case.y.ndim == 1 and len(case.settings) == 3
    )
    assert synthesis.judge(case) == []
    spoil_fits(spoil, monkeypatch)
    assert any(words in fault for fault in synthesis.judge(case))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (dict(mean=1.01), "mean off"),
        (dict(variance=3.0), "std where seen"),
        (dict(noise_std=3.0), "std where seen"),
    ],
    ids=["mean", "variances", "noise"],
)
def test_it_notices_what_is_wrong_in_analysis_form(
    spoil: dict[str, float], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = next(
        case
        for case in (analysis.draw("identity, line", number) for number in range(300))
        if case.settings["noise_std"] != "learn"
        and case.settings["noise_std"] < 0.05  # else the mean is uncertain by more than it is spoilt
        and "offset 1," in case.words
        and not analysis.judge(case)
    )
    spoil_fits(spoil, monkeypatch)
    assert any(words in fault for fault in analysis.judge(case))


def spoil_fits(factors: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Multiply what fits return."""
    whole = cofem.fit

    def spoilt(*arguments: Any, **settings: Any) -> cofem.Posterior:
        post = whole(*arguments, **settings)
        for name, factor in factors.items():
            object.__setattr__(post, name, factor * np.asarray(getattr(post, name)))
        return post

    monkeypatch.setattr(cofem, "fit", spoilt)
