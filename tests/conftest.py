"""How property tests draw cases: the same ones in every run of the suite, new ones in `make nightly`."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("default", deadline=None, derandomize=True, database=None)
settings.register_profile("nightly", deadline=None, print_blob=True)
settings.load_profile(os.environ.get("COFEM_PROFILE", "default"))

#: Why tests were skipped that a package was missing for.
_missing: list[str] = []


def _note(report: Any) -> None:
    if report.skipped and isinstance(report.longrepr, tuple):
        reason = str(report.longrepr[2])
        if "could not import" in reason or "No module named" in reason:
            _missing.append(f"{report.nodeid}: {reason}")


def pytest_runtest_logreport(report: Any) -> None:
    _note(report)


def pytest_collectreport(report: Any) -> None:
    _note(report)


def pytest_collection_modifyitems(config: Any, items: list[pytest.Item]) -> None:
    """Leave what is marked `nightly` to `make nightly`, unless it is asked for by `-m`."""
    if os.environ.get("COFEM_PROFILE") == "nightly" or config.getoption("-m"):
        return
    left_out = [item for item in items if item.get_closest_marker("nightly")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("nightly")]


def pytest_sessionfinish(session: Any, exitstatus: int) -> None:
    """Fail where COFEM_REQUIRE_ALL is set and a test was skipped for something that is not there."""
    if _missing and os.environ.get("COFEM_REQUIRE_ALL") and exitstatus == 0:
        session.exitstatus = 1


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if _missing and os.environ.get("COFEM_REQUIRE_ALL"):
        terminalreporter.section("skipped for want of a package, which COFEM_REQUIRE_ALL forbids")
        for line in _missing:
            terminalreporter.line(line)


def pytest_configure() -> None:
    """Let Ctrl-C interrupt: a shell that runs the suite in the background has processes ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
