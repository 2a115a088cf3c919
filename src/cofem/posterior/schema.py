"""What the file of a posterior must hold: the one place where its content is checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from cofem.inference.analysis.method import AnalysisEM
from cofem.operators.fingerprint import Fingerprint
from cofem.status import Status, StatusCode

#: Types of numbers that a posterior holds.
REAL: tuple[str, ...] = ("float32", "float64")
WHOLE = ("int64", "int32")
ANY = (*REAL, "complex64", "complex128")
#: Largest number that JSON may give as an integer and that is still one here.
LARGEST = float(np.finfo(np.float64).max)


class Saved(NamedTuple):
    """The content of a file, checked: what `Posterior` is made of.

    Attributes
    ----------
    arrays : dict of str to ndarray
        ``mean, variance`` and, where there are such, ``alpha, y, weights, blocks, gaussian_mean,
        gaussian_variance``.
    noise_std : float or ndarray of shape (L,)
        Standard deviation of the noise.
    method : str
        Name of the algorithm.
    status : Status
        How the fit ended.
    scale : float
        What the covariance is multiplied by.
    history : dict of str to ndarray
        One entry for each step.
    fingerprints : dict of str to Fingerprint
        What the operators are known by.
    tasks : list of Saved
        The same of each task that was fitted by itself.
    """

    arrays: dict[str, np.ndarray]
    noise_std: Any
    method: str
    status: Status
    scale: float
    history: dict[str, np.ndarray]
    fingerprints: dict[str, Fingerprint]
    tasks: list[Saved]


class Rule(NamedTuple):
    """What an array must be.

    Attributes
    ----------
    shapes : tuple of str
        Which shapes it may have, by the letters of their lengths: ``"DL"`` is (D, L).
    types : tuple of str
        Which types its numbers may have.
    fits : callable
        Tells of each number whether it can be.
    words : str
        The same for people.
    needed : bool
        Whether it must be there.
    """

    shapes: tuple[str, ...]
    types: tuple[str, ...] = ANY
    fits: Callable[[np.ndarray], np.ndarray] = np.isfinite
    words: str = "finite"
    needed: bool = True


def _is_positive(values: np.ndarray) -> np.ndarray:
    return np.isfinite(values) & (values > 0)


def _is_not_negative(values: np.ndarray) -> np.ndarray:
    return values >= 0  # infinity is: of what no datum and no prior sees


def _rules(several: bool, in_analysis: bool, apart: bool) -> dict[str, Rule]:
    """Return what each array must be; N data, D unknowns, M precisions, L tasks."""
    tasks = "L" if several else ""
    precisions = "M" if in_analysis else "D"
    spread = Rule(("D" + tasks,), REAL, _is_not_negative, "non-negative")
    return {
        "mean": Rule(("D" + tasks,)),
        "variance": spread,
        "alpha": spread._replace(
            shapes=(precisions, precisions + "L") if apart else (precisions,),
            needed=not (apart and in_analysis),  # tasks may have chosen rows of their own
        ),
        "y": Rule(("N" + tasks,), needed=not apart),
        "weights": Rule(("N",), REAL, _is_positive, "positive and finite", needed=False),
        "blocks": Rule(("D",), WHOLE, _is_not_negative, "numbers of blocks", needed=False),
        "gaussian_mean": Rule(("D" + tasks,), REAL, needed=False),
        "gaussian_variance": spread._replace(shapes=("D", "D" + tasks), needed=False),
    }


def checked(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray], of_a_task: bool = False) -> Saved:
    """Return the content of a file, or raise `ValueError` with what is wrong in it.

    Parameters
    ----------
    header : dict
        The words of the file.
    arrays : dict of str to ndarray
        Its arrays.
    of_a_task : bool
        Whether this is a task of another one, which has none itself.
    """
    method = _checked(header, "method", lambda value: isinstance(value, str) and value != "", "a name")
    several = arrays["mean"].ndim == 2 if "mean" in arrays else False
    parts = _checked(header, "tasks", lambda value: isinstance(value, list), "a list", default=[])
    if parts and (of_a_task or not several):
        raise ValueError("tasks must be those of a mean of shape (D, L)")
    if of_a_task and several:
        raise ValueError(f"mean of a task must have shape (D,), got {arrays['mean'].shape}")
    lengths: dict[str, int] = {}
    rules = _rules(several, method == AnalysisEM.name, bool(parts))
    found = {name: values for name, rule in rules.items() for values in _array(name, rule, arrays, lengths)}
    if ("gaussian_mean" in found) != ("gaussian_variance" in found):
        raise ValueError("gaussian_mean and gaussian_variance must be both there, or none")
    if parts and len(parts) != lengths["L"]:
        raise ValueError(f"tasks must be {lengths['L']}, as many as columns of mean, got {len(parts)}")
    return Saved(
        found,
        _noise_std(header, lengths["L"] if parts else None),
        method,
        _status(header),
        float(_checked(header, "scale", _is_level, "positive and finite", default=1.0)),
        _history(arrays),
        _fingerprints(header),
        [_task(i, part, arrays, lengths["D"]) for i, part in enumerate(parts)],
    )


def _task(i: int, header: Any, arrays: Mapping[str, np.ndarray], n_columns: int) -> Saved:
    if not isinstance(header, dict):
        raise ValueError(f"tasks[{i}] must be a dictionary, got {_brief(header)}")
    prefix = f"task{i}_"
    own = {name.removeprefix(prefix): part for name, part in arrays.items() if name.startswith(prefix)}
    try:
        task = checked(header, own, of_a_task=True)
    except ValueError as error:
        raise ValueError(f"task {i}: {error}") from error
    if task.arrays["mean"].shape[0] != n_columns:
        raise ValueError(f"task {i}: mean must have shape ({n_columns},), got {task.arrays['mean'].shape}")
    return task


def _array(
    name: str, rule: Rule, arrays: Mapping[str, np.ndarray], lengths: dict[str, int]
) -> list[np.ndarray]:
    """Return an array in a list that is empty if there is none; note lengths that are not known yet."""
    if name not in arrays:
        if rule.needed:
            raise ValueError(f"{name} is missing")
        return []
    values = arrays[name]
    if values.dtype.name not in rule.types:
        raise ValueError(f"{name} must be of type {' or '.join(rule.types)}, got {values.dtype}")
    for shape in rule.shapes:
        known = [lengths.get(letter, found) for letter, found in zip(shape, values.shape, strict=False)]
        if list(values.shape) == known and len(shape) == values.ndim and values.size:
            lengths |= dict(zip(shape, values.shape, strict=True))
            break
    else:
        named = " or ".join(
            str(tuple(lengths.get(letter, letter) for letter in shape)) for shape in rule.shapes
        )
        named = named.replace("'", "")  # of letters for lengths that are free
        raise ValueError(f"{name} must have shape {named}, got {values.shape}")
    wrong = values.size - int(np.count_nonzero(rule.fits(values)))
    if wrong:
        raise ValueError(f"{name} must be {rule.words}, got {wrong} numbers that are not")
    return [values.astype(values.dtype.newbyteorder("="), copy=False)]


def _checked(
    header: Mapping[str, Any], name: str, fits: Callable[[Any], bool], words: str, **default: Any
) -> Any:
    """Return an entry of the header, or say what it must be."""
    if name not in header and not default:
        raise ValueError(f"{name} is missing")
    value = header.get(name, default.get("default"))
    if not fits(value):
        raise ValueError(f"{name} must be {words}, got {_brief(value)}")
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST


def _is_level(value: Any) -> bool:
    return _is_number(value) and value > 0


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _noise_std(header: Mapping[str, Any], n_tasks: int | None) -> Any:
    value = header.get("noise_std")
    if n_tasks is not None and isinstance(value, list):
        if len(value) != n_tasks or not all(map(_is_level, value)):
            raise ValueError(f"noise_std must be {n_tasks} positive numbers, got {_brief(value)}")
        return np.array(value, dtype=np.float64)
    return float(_checked(header, "noise_std", _is_level, "positive and finite"))


def _status(header: Mapping[str, Any]) -> Status:
    codes = [code.value for code in StatusCode]

    def fits(value: Any) -> bool:
        if not isinstance(value, list) or len(value) not in (3, 4):  # those of before had no warnings
            return False
        code, message, *texts = value
        return code in codes and isinstance(message, str) and all(map(_is_texts, texts))

    words = f"a code of {', '.join(codes)}, a message, notes and warnings"
    code, message, *texts = _checked(header, "status", fits, words)
    return Status(StatusCode(code), message, *map(tuple, texts))


def _history(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    found = {
        name.removeprefix("history_"): values
        for name, values in arrays.items()
        if name.startswith("history_")
    }
    if "iteration" not in found:
        raise ValueError("history_iteration is missing")
    for name, values in found.items():
        if values.ndim != 1 or values.dtype.kind not in "fciubU" or values.size > found["iteration"].size:
            raise ValueError(
                f"history_{name} must be at most {found['iteration'].size} numbers or words, one for each "
                f"step, got {values.dtype} of shape {values.shape}"
            )
    return found


def _fingerprints(header: Mapping[str, Any]) -> dict[str, Fingerprint]:
    known = _checked(
        header, "fingerprints", lambda value: isinstance(value, dict), "a dictionary", default={}
    )
    for name, value in known.items():
        if not (
            isinstance(value, list)
            and len(value) == 5
            and value[0] in ANY
            and all(map(_is_number, value[1:]))
        ):
            raise ValueError(
                f"the fingerprint of {name} must be a type and four numbers, got {_brief(value)}"
            )
    return {name: Fingerprint(value[0], tuple(value[1:])) for name, value in known.items()}


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
