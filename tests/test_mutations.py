"""The table of mutation spot checks cannot rot: its lines and its tests are there."""

from __future__ import annotations

import pytest

from .mutations import MUTATIONS, ROOT, Mutation, occurrences


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_line_and_tests_are_there(mutation: Mutation) -> None:
    assert occurrences(mutation) == 1
    assert mutation.broken != mutation.original
    assert mutation.tests
    for test in mutation.tests:
        file, _, function = test.partition("::")
        text = (ROOT / "tests" / file).read_text()
        assert not function or f"def {function}(" in text


def test_names_are_distinct() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS) >= 10
