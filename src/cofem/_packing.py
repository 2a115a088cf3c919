"""Values as arrays and JSON, without pickle: what checkpoints are made of.

A type declares itself with `packable`; nobody keeps a list of types elsewhere.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, TypeVar

import numpy as np

from cofem._arrays import Array, is_foreign, on_device_of, place, to_numpy

Kind = TypeVar("Kind", bound=type)

_TYPES: dict[str, type[Any]] = {}
_NAMES: dict[type[Any], str] = {}


class OfAnotherLibrary(np.ndarray):
    """Numbers of an array of another library than NumPy, as a file holds them; see `to_place`.

    Attributes
    ----------
    place : str
        The library and the device it was on.
    """

    place: str = ""


def packable(name: str) -> Callable[[Kind], Kind]:
    """Declare that a dataclass, NamedTuple or enumeration may stand in a checkpoint, under a name.

    Its fields are stored, and may be whatever a checkpoint can hold. A type that has a better form for files
    writes two methods: ``packed()`` returns a dictionary, and the class method ``unpacked`` takes it.

    Parameters
    ----------
    name : str
        What files call it; must not change as long as files are to be read.

    Examples
    --------
    >>> from typing import NamedTuple
    >>> @packable("doctest-point")
    ... class Point(NamedTuple):
    ...     x: float
    >>> unpack(pack(Point(1.5), {}), {})
    Point(x=1.5)
    """

    def declare(kind: Kind) -> Kind:
        known = _TYPES.get(name)
        if known is not None and (known.__module__, known.__qualname__) != (
            kind.__module__,
            kind.__qualname__,
        ):
            raise ValueError(
                f"packable: the name {name!r} is taken by {known.__module__}.{known.__qualname__}"
            )
        _TYPES[name], _NAMES[kind] = kind, name
        return kind

    return declare


def pack(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    """Return `value` as something that JSON can hold; its arrays are put into `arrays`.

    Examples
    --------
    >>> import numpy as np
    >>> arrays = {}
    >>> tree = pack((1, np.ones(2), {"a": None}), arrays)
    >>> unpack(tree, arrays)
    (1, array([1., 1.]), {'a': None})
    """
    if is_foreign(value) or isinstance(value, OfAnotherLibrary):
        name = f"a{len(arrays)}"
        was = value.place if isinstance(value, OfAnotherLibrary) else place(value)
        arrays[name] = np.array(to_numpy(value))
        return {"foreign": [name, was]}
    if isinstance(value, np.ndarray | np.generic):  # numbers of NumPy keep their precision
        name = f"a{len(arrays)}"
        arrays[name] = np.asarray(value)
        return {"array" if isinstance(value, np.ndarray) else "number": name}
    if type(value) not in _NAMES and (value is None or isinstance(value, bool | int | float | str)):
        return value
    if type(value) in _NAMES:
        name = _NAMES[type(value)]
        if isinstance(value, Enum):
            return {"kind": name, "value": pack(value.value, arrays)}
        fields = value.packed() if hasattr(value, "packed") else _fields(value)
        return {"kind": name, "fields": {field: pack(part, arrays) for field, part in fields.items()}}
    if type(value) in (list, tuple):
        return {type(value).__name__: [pack(part, arrays) for part in value]}
    if isinstance(value, Mapping):
        return {"dict": [[pack(key, arrays), pack(part, arrays)] for key, part in value.items()]}
    raise TypeError(
        f"a checkpoint cannot hold a {type(value).__module__}.{type(value).__qualname__}; declare the type "
        "with cofem.packable"
    )


def unpack(tree: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """Return what `pack` was given, with arrays of other libraries as `OfAnotherLibrary`."""
    if not isinstance(tree, dict):
        return tree
    if "kind" in tree:
        kind = _TYPES[tree["kind"]]
        if "value" in tree:
            return kind(unpack(tree["value"], arrays))
        fields = {name: unpack(part, arrays) for name, part in tree["fields"].items()}
        return kind.unpacked(fields) if hasattr(kind, "unpacked") else kind(**fields)
    ((tag, content),) = tree.items()
    readers: dict[str, Callable[[], Any]] = {
        "array": lambda: arrays[content],
        "number": lambda: arrays[content][()],
        "foreign": lambda: _marked(arrays[content[0]], content[1]),
        "list": lambda: [unpack(part, arrays) for part in content],
        "tuple": lambda: tuple(unpack(part, arrays) for part in content),
        "dict": lambda: {unpack(key, arrays): unpack(part, arrays) for key, part in content},
    }
    return readers[tag]()


def to_place(value: Any, like: Array) -> Any:
    """Return what `unpack` gave, with every `OfAnotherLibrary` where `like` is.

    They become arrays of its library on its device. What counts is where the data are now: what was written
    on a graphics processor goes on wherever they are.

    Examples
    --------
    >>> import numpy as np
    >>> marked = np.ones(2).view(OfAnotherLibrary)
    >>> to_place({"a": [marked]}, like=np.zeros(1))
    {'a': [array([1., 1.])]}
    """
    if isinstance(value, OfAnotherLibrary):
        return on_device_of(like, np.asarray(value))
    if type(value) in (list, tuple):
        return type(value)(to_place(part, like) for part in value)
    if type(value) is dict:
        return {name: to_place(part, like) for name, part in value.items()}
    if type(value) in _NAMES and not isinstance(value, Enum | str):
        fields = {name: to_place(part, like) for name, part in _fields(value).items()}
        return type(value)(**fields)
    return value


def _marked(values: np.ndarray, was: str) -> OfAnotherLibrary:
    marked = values.view(OfAnotherLibrary)
    marked.place = was
    return marked


def _fields(value: Any) -> dict[str, Any]:
    names = getattr(value, "_fields", None) or [field.name for field in dataclasses.fields(value)]
    return {name: getattr(value, name) for name in names}
