"""Every public name shows how it is used, in an example that runs with the doctests of the suite."""

from __future__ import annotations

import doctest
import inspect
from collections.abc import Iterator
from functools import cached_property
from types import FunctionType, ModuleType
from typing import Any

import pytest

import cofem
from cofem import operators, plotting, priors

MODULES = (cofem, operators, plotting, priors)


def public_names(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield the functions and classes that a module offers, by name."""
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            yield f"{module.__name__}.{name}", value


def classes(module: ModuleType) -> list[type]:
    return [value for _, value in public_names(module) if inspect.isclass(value)]


def public_members(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties of a class, also inherited ones, but for scikit-learn's."""
    own = [base for base in cls.__mro__ if base.__module__.split(".")[0] != "sklearn"]
    for name in sorted({name for base in own for name in vars(base) if not name.startswith("_")}):
        value = inspect.getattr_static(cls, name)
        # scikit-learn puts `set_fit_request` and the like into every class, as objects of its own.
        if isinstance(value, FunctionType | classmethod | staticmethod | property | cached_property):
            yield f"{cls.__name__}.{name}", value


def without_example(named: Iterator[tuple[str, Any]]) -> list[str]:
    """Return the names whose docstring has no example, or none with an output."""
    return [name for name, value in named if not has_example(value.__doc__ or "")]


def has_example(docstring: str) -> bool:
    examples = doctest.DocTestParser().get_examples(docstring.partition("Examples\n")[2])
    return any(example.want for example in examples)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_public_name_has_an_example(module: ModuleType) -> None:
    assert list(public_names(module))
    assert without_example(public_names(module)) == []


#: Classes whose methods users call, and not only an algorithm.
WITH_METHODS = (
    *classes(operators),
    *classes(plotting),
    cofem.Posterior,
    cofem.Status,
    cofem.SBLRegressor,
    cofem.RVMRegressor,
)


@pytest.mark.parametrize("cls", WITH_METHODS, ids=lambda cls: cls.__name__)
def test_every_public_method_has_an_example(cls: type) -> None:
    assert list(public_members(cls))
    assert without_example(public_members(cls)) == []


def test_what_has_no_example_is_found() -> None:
    class Base(operators.Operator):
        """One line."""

        def inherited(self) -> None:
            """One line."""

    class Own(Base):
        """Has an example.

        Examples
        --------
        >>> 1 + 1
        2
        """

        def forward(self, x: Any) -> Any:  # without a docstring of its own
            return x

        @property
        def silent(self) -> int:
            """Show no output.

            Examples
            --------
            >>> silent = 1
            """
            return 1

        @cached_property
        def told(self) -> int:
            """Show one.

            Examples
            --------
            >>> 1
            1
            """
            return 1

        @staticmethod
        def static() -> None:
            """One line."""

        def _private(self) -> None:
            """One line."""

    module = ModuleType("module")
    module.__all__, module.Base, module.Own, module.number = ["Base", "Own", "number"], Base, Own, 3
    assert without_example(public_names(module)) == ["module.Base"]
    names = ["Own.forward", "Own.inherited", "Own.silent", "Own.static"]
    assert without_example(public_members(Own)) == names
    fitted = {name for name, _ in public_members(cofem.SBLRegressor)}
    assert fitted == {f"SBLRegressor.{name}" for name in ("fit", "predict", "sigma_", "coef_table")}
