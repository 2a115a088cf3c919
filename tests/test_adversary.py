"""The standing adversary of `make nightly`: a few of its cases, and that it notices what is wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cofem

from .adversary import KINDS, draw, judge


@pytest.mark.parametrize("number", range(len(KINDS)), ids=KINDS)
def test_a_case_of_each_kind_is_not_silently_wrong(number: int) -> None:
    assert judge(draw(number)) == []


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
        for case in map(draw, range(0, 300, len(KINDS)))
        if case.settings["method"] in ("irls", "em") and case.y.ndim == 1 and len(case.settings) == 3
    )
    whole = cofem.fit

    def spoilt(*arguments: Any, **settings: Any) -> cofem.Posterior:
        post = whole(*arguments, **settings)
        for name, factor in spoil.items():
            object.__setattr__(post, name, factor * np.asarray(getattr(post, name)))
        return post

    assert judge(case) == []
    monkeypatch.setattr(cofem, "fit", spoilt)
    assert any(words in fault for fault in judge(case))
