"""What README.md, CONTRIBUTING.md and docs/ say is so: snippets run, links lead somewhere, names exist.

A block that cannot run has ``<!-- not run: reason -->`` in the line above it. The other blocks of a page run
one after the other, with `Phi`, `y` and the like of a small problem at hand. A block of ``text`` is what the
one before it prints, or with ``<!-- printed by: page.md -->`` above it what that page does; ``[...]`` in it
stands for anything. A value behind an expression, as in ``post.support()  # 20, 77``, is compared as well.
"""

from __future__ import annotations

import io
import re
import sys
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import pytest

import cofem
from cofem.operators import DCT, Mask

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
SOURCE = Path(cofem.__file__).parent


class Block(NamedTuple):
    """Python of a page, or what a page shows as printed."""

    kind: str
    code: str
    #: Of Python, why it is not run; of what was printed, the page that printed it; or "".
    note: str


def blocks(text: str) -> list[Block]:
    """Return the Python of a page and, on pages that have some, the outputs that it shows."""
    fences = re.findall(
        r"(?:<!-- (?:not run|printed by): (.+?) -->\n+)?```(python|text)\n(.*?)```", text, re.DOTALL
    )
    found = [Block(kind, code, note) for note, kind, code in fences]
    return found if any(block.kind == "python" for block in found) else []


def small_problem() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    n = 64
    z = np.zeros(n)
    z[[8, 9, 10, 11, 40]] = 3.0
    rows = np.sort(rng.choice(n, n // 2, replace=False))
    Phi = Mask(rows, n) @ DCT(n).T
    y = Phi @ z + 0.01 * rng.standard_normal(n // 2)
    Y = np.stack([y, 2 * y], axis=1)
    return dict(cofem=cofem, np=np, Phi=Phi, y=y, Y=Y, n=n, rows=rows, weights=np.linspace(0.5, 2, n // 2))


#: A number as it stands in a text.
NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
#: How far numbers that are shown may be off, relative to themselves: rounding differs from machine to machine,
#: and with it what is measured, by much, and steps, by one of 19; data that are held out are the same ones.
SHOWN_DIGITS, SHOWN_COUNTS = 0.5, 0.1


def is_shown(shown: str, printed: str) -> bool:
    """Tell whether a text was printed: ``[...]`` stands for anything, numbers may be off a little."""
    words, numbers = [" ".join(part.split()) for part in shown.split("[...]")], NUMBER.findall(shown)
    pattern = ".*".join(r"(\S+?)".join(map(re.escape, NUMBER.split(part))) for part in words)
    found = re.fullmatch(pattern.strip(), " ".join(printed.split()))
    if found is None or not all(map(NUMBER.fullmatch, found.groups())):
        return False
    return all(
        abs(float(one) - float(other)) <= (SHOWN_COUNTS if one.isdigit() else SHOWN_DIGITS) * abs(float(one))
        for one, other in zip(numbers, found.groups(), strict=True)
    )


def shown_values(code: str) -> list[tuple[str, str]]:
    """Return expressions of a block that have their value behind them: numbers, or words in quotes."""
    return re.findall(r"^([^\s#].*?)  # ([-\d.,()\[\] ]+|\".+\")$", code, re.MULTILINE)


def as_shown(value: Any) -> str:
    """Return a value as pages show it behind an expression."""
    return ", ".join(map(str, value.tolist())) if isinstance(value, np.ndarray) else str(value)


def run_page(page: Path) -> str:
    """Run the Python of a page, compare what it shows with what there is, and return all that was printed."""
    names, every, last = small_problem(), [""], ""
    for kind, code, note in blocks(page.read_text()):
        if kind == "text":
            printed = run_page(page.parent / note) if note else last
            assert is_shown(code, printed), f"{page.name} shows\n{code}\nbut it is\n{printed}"
            continue
        compiled = compile(code, page.name, "exec")  # what is not run must at least be Python
        if not note:
            with redirect_stdout(io.StringIO()) as output:
                exec(compiled, names)
            last = output.getvalue()
            every.append(last)
            for expression, value in shown_values(code):
                now, shown = as_shown(eval(expression, names)), value.strip('"').replace("...", "[...]")
                assert is_shown(shown, now), f"{page.name}: {expression} is not {value}, but {now}"
    return "".join(every)


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p.read_text())], ids=lambda page: page.name)
def test_snippets_run_and_print_what_is_shown(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # some write files
    run_page(page)


def test_a_reason_is_found_and_its_block_alone() -> None:
    text = "```python\na\n```\n<!-- not run: slow -->\n```python\nb\n```\n\n```python\nc\n```\n"
    assert blocks(text) == [
        Block("python", "a\n", ""),
        Block("python", "b\n", "slow"),
        Block("python", "c\n", ""),
    ]


@pytest.mark.parametrize(
    ("printed", "same"),
    [
        ("changed by 0.0013 at step 20. variances by x. from 102 data held out, 2 parts", True),
        ("changed by 0.0011 at step 19. from 102 data held out, 2 parts", False),
        ("changed by 0.0011 at step 19. . from 204 data held out, 4 parts", False),
        ("changed by 0.1 at step 19. . from 102 data held out, 2 parts", False),
        ("changed by nothing at step 19. . from 102 data held out, 2 parts", False),
    ],
)
def test_what_is_stale_is_found(printed: str, same: bool) -> None:
    shown = "changed by 0.0011 at\nstep 19. [...]. from 102 data held out, 2 parts"
    assert is_shown(shown, printed) is same


def test_values_behind_expressions_are_found() -> None:
    code = 'post.support()  # 20, 77\npost.std  # of |z|\npost.status  # "... periods of 12 ..."\nx = 3  # (D, L)\n'
    assert shown_values(code) == [("post.support()", "20, 77"), ("post.status", '"... periods of 12 ..."')]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" not in target and not target.startswith("#"):
            assert (page.parent / target.partition("#")[0]).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_and_files_exist(page: Path) -> None:
    """Everything written as `cofem.a.b` can be imported, every file written as `a/b.py` is there."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for name in set(re.findall(r"`(cofem(?:\.\w+)+)", text)):
        assert exists(name), name
    places = (ROOT, SOURCE.parent, SOURCE, *(path for path in SOURCE.rglob("*") if path.is_dir()))
    for name in set(re.findall(r"`([\w./-]+\.py)`", text)):
        assert any((place / name).exists() for place in places), name


def exists(dotted: str) -> bool:
    """Tell whether a name such as ``cofem.linalg.system`` or ``cofem.Posterior.save`` is there."""
    value: Any = cofem
    path = "cofem"
    for part in dotted.split(".")[1:]:
        path = f"{path}.{part}"
        try:
            value = getattr(value, part) if hasattr(value, part) else import_module(path)
        except ImportError:
            return False
    return True


def test_a_name_that_is_gone_is_found() -> None:
    assert exists("cofem.Posterior.save")
    assert exists("cofem.linalg.preconditioners.large_columns")
    assert not exists("cofem.linalg.large_columns")


# --- the tree in CONTRIBUTING.md ----------------------------------------------------------------------


def drawn_calls() -> list[tuple[str, ...]]:
    """Return each function of the tree with its callers, as ``file:name``, outermost first."""
    (tree,) = re.findall(r"```tree\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    path: list[str] = []
    calls = []
    for line in tree.splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        name, file = line.split()[:2]
        path = [*path[:depth], f"{file}:{name}"]
        assert len(path) == depth + 1, line
        calls.append(tuple(path))
    return calls


def is_within(wanted: tuple[str, ...], stack: tuple[str, ...]) -> bool:
    """Tell whether the wanted functions stand in a stack in their order, ending with its last."""
    rest = iter(stack)
    return wanted[-1] == stack[-1] and all(name in rest for name in wanted)


def test_the_tree_of_a_fit_is_what_happens() -> None:
    rng = np.random.default_rng(0)
    n = 1200
    Phi = Mask(np.sort(rng.choice(n, n // 2, replace=False)), n) @ DCT(n).T
    z = np.zeros(n)
    z[rng.choice(n, 24, replace=False)] = 1.0
    y = Phi @ z + 0.01 * rng.standard_normal(n // 2)
    wanted = drawn_calls()
    names = {name for path in wanted for name in path}
    stacks: set[tuple[str, ...]] = set()
    stack: list[str] = []
    prefix = f"{SOURCE}/"

    def look(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        name = f"{code.co_filename.removeprefix(prefix)}:{code.co_qualname}"
        if name not in names:
            return
        if event == "call":
            stack.append(name)
            stacks.add(tuple(stack))
        elif event == "return":
            stack.pop()

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        cofem.fit(Phi, y, rng=0)
    finally:
        sys.setprofile(before)
    missing = [path for path in wanted if not any(is_within(path, stack) for stack in stacks)]
    assert missing == []
