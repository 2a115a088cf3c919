"""The file of a posterior: arrays and JSON in an ``.npz`` archive."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from cofem._arrays import on_device_of, to_numpy
from cofem.files import UNREADABLE, check_arrays, one_line, read_archive, write_npz
from cofem.inference.analysis.method import AnalysisEM
from cofem.operators import Operator, as_operator
from cofem.operators.fingerprint import Fingerprint, known_by
from cofem.posterior.posterior import Posterior
from cofem.posterior.schema import Saved, checked

FORMAT = "cofem-posterior"
FORMAT_VERSION = 3

_ARRAYS = ("mean", "variance", "alpha", "y")


def save(posterior: Posterior, path: str | os.PathLike[str]) -> None:
    """Write a posterior without its operator, whole or not at all; see `Posterior.save`."""
    header, arrays = _contents(posterior)
    header |= {"format": FORMAT, "version": FORMAT_VERSION}
    for i, task in enumerate(posterior.tasks or ()):
        inner, parts = _contents(task)
        header.setdefault("tasks", []).append(inner)
        arrays |= {f"task{i}_{name}": values for name, values in parts.items()}
    write_npz(path, header, arrays)


def _contents(posterior: Posterior) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return what is saved of one posterior: words and arrays."""
    header: dict[str, Any] = {
        "noise_std": np.asarray(posterior.noise_std).tolist(),
        "method": posterior.method,
        "scale": posterior.scale,
        "status": [
            posterior.status.code.value,
            posterior.status.message,
            list(posterior.status.notes),
            list(posterior.status.warnings),
        ],
        "fingerprints": {name: [known.dtype, *known.numbers] for name, known in _known_by(posterior)},
    }
    arrays = {name: getattr(posterior, name) for name in (*_ARRAYS, "weights", "blocks")}
    if posterior.gaussian is not None:
        arrays |= {"gaussian_mean": posterior.gaussian[0], "gaussian_variance": posterior.gaussian[1]}
    arrays |= {f"history_{name}": values for name, values in posterior.history.items()}
    return header, {name: to_numpy(values) for name, values in arrays.items() if values is not None}


def _known_by(posterior: Posterior) -> Iterator[tuple[str, Fingerprint]]:
    """Give what the operators of a posterior are known by, each with its name."""
    for name in ("operator", "analysis"):
        operator = getattr(posterior, name)
        if name in posterior.fingerprints:  # of the fit itself, whatever it was loaded with
            yield name, posterior.fingerprints[name]
        elif operator is not None and posterior.y is not None:
            # What is saved matters more than an operator that has failed by now.
            with contextlib.suppress(Exception):
                yield name, known_by(operator, posterior.y)


def load(
    path: str | os.PathLike[str], operator: Any = None, analysis: Any = None, *, check: bool = True
) -> Posterior:
    """Read a posterior written by `Posterior.save`.

    Parameters
    ----------
    path : path
        The ``.npz`` file.
    operator : anything `cofem.as_operator` takes, optional
        The dictionary of the fit, or a list of them as in the fit; needed again for `sample`,
        `covariance` and the like. The arrays of the posterior are NumPy's, or where the numbers of the
        operator are if that is another library.
    analysis : anything `cofem.as_operator` takes, optional
        The operator B of a fit with ``analysis=B``, or a list with one for each task that chose its own;
        needed again, too. What ``analysis="auto"`` chose is ``post.analysis``.
    check : bool
        Whether to refuse operators that are not those of the fit, as products with a fixed pair of random
        vectors tell, up to rounding. Files of older versions do not say what to compare with.

    Raises
    ------
    ValueError
        If it is no such file, if something in it cannot be, or if an operator is not that of the fit.

    Examples
    --------
    >>> import numpy as np, cofem, tempfile, os
    >>> post = cofem.fit(np.eye(3), np.array([1.0, 0.0, 0.0]), noise_std=0.1)
    >>> path = os.path.join(tempfile.mkdtemp(), "fit.npz")
    >>> post.save(path)
    >>> cofem.load(path, operator=np.eye(3)).support().tolist()
    [0]
    """
    try:
        header, arrays = read_archive(path)
        if header.get("format") != FORMAT:
            raise ValueError(f"its format is {header.get('format')!r}")
        version = header.get("version")
        if type(version) is not int or version < 1:
            raise ValueError(f"its version is {version!r}")
    except FileNotFoundError:
        raise
    except UNREADABLE as error:
        raise ValueError(
            f"path must be a file written by Posterior.save, but {str(path)!r} is not: {one_line(error)}"
        ) from error
    if version > FORMAT_VERSION:
        raise ValueError(
            f"path {str(path)!r} was written by a newer cofem (format {version}, this one reads up to "
            f"{FORMAT_VERSION}); upgrade cofem to read it"
        )
    try:
        check_arrays(header, arrays)
        saved = checked(header, arrays)
    except ValueError as error:
        raise ValueError(f"path {str(path)!r} is damaged: {one_line(error)}") from error
    return _rebuild(saved, operator, analysis, check, os.fspath(path))


def _rebuild(saved: Saved, operator: Any, analysis: Any, check: bool, path: str) -> Posterior:
    """Make a posterior from what was saved."""
    arrays, count = saved.arrays, len(saved.tasks)
    of_each = zip(_each(operator, count, "operator"), _each(analysis, count, "analysis"), strict=True)
    tasks = [_rebuild(task, *own, check, path) for task, own in zip(saved.tasks, of_each, strict=True)]
    phi = rows = None
    if operator is not None and not (tasks and isinstance(operator, list | tuple)):
        n_rows = arrays["y"].shape[0] if "y" in arrays else None
        phi = _given("operator", operator, (n_rows, arrays["mean"].shape[0]), path)
    if analysis is not None and not (tasks and isinstance(analysis, list | tuple)):
        if saved.method != AnalysisEM.name:
            raise ValueError(
                f"analysis is for posteriors of fits with analysis=B, this one is of {saved.method!r}"
            )
        n_rows = arrays["alpha"].shape[0] if "alpha" in arrays else None
        rows = _given("analysis", analysis, (n_rows, arrays["mean"].shape[0]), path)
    for name, given in (("operator", phi), ("analysis", rows)):
        if check and given is not None and name in saved.fingerprints:
            _check_identity(name, given, saved.fingerprints[name], path)
    if phi is not None and phi.device_array is not None:
        kept = {"mean", "variance", "alpha", "y", "weights"} & arrays.keys()
        arrays = arrays | {name: on_device_of(phi.device_array, arrays[name]) for name in kept}
    gaussian = None
    if "gaussian_mean" in arrays:
        gaussian = (arrays["gaussian_mean"], arrays["gaussian_variance"])
    return Posterior(
        **{name: arrays.get(name) for name in (*_ARRAYS, "weights", "blocks")},
        gaussian=gaussian,
        tasks=tuple(tasks) or None,
        noise_std=saved.noise_std,
        method=saved.method,
        status=saved.status,
        history=saved.history,
        operator=phi,
        analysis=rows,
        scale=saved.scale,
        fingerprints=saved.fingerprints,
    )


def _each(given: Any, count: int, name: str) -> list[Any]:
    """Return what each task is given."""
    if not count or not isinstance(given, list | tuple):
        shared = as_operator(given) if count and given is not None else None
        return [shared] * count
    if len(given) != count:
        raise ValueError(f"{name} must be one for all tasks or a list of {count}, got {len(given)}")
    return list(given)


def _given(name: str, operator: Any, shape: tuple[int | None, int], path: str) -> Operator:
    """Return an operator that has the shape of the one of the fit, or refuse it."""
    found = as_operator(operator)
    wanted = (found.shape[0] if shape[0] is None else shape[0], shape[1])
    if found.shape != wanted:
        raise ValueError(f"{name} must have shape {wanted} as in the fit in {path!r}, got {found.shape}")
    return found


def _check_identity(name: str, operator: Operator, known: Fingerprint, path: str) -> None:
    """Refuse an operator that is not the one of the fit."""
    dtype, stored = np.dtype(known.dtype), operator.device_array
    like = np.zeros(1, dtype)
    try:
        like = like if stored is None else on_device_of(stored, like)
        found = known_by(operator.astype(dtype), like, again=True)  # its numbers may have changed since
    except Exception as error:  # whatever a user's operator may raise
        raise ValueError(
            f"{name} could not be compared with that of the fit in {path!r}: {one_line(error)}; check=False "
            "leaves that out"
        ) from error
    if not known.agrees(found):
        raise ValueError(
            f"{name} must be that of the fit in {path!r}, but products with the same vectors differ by "
            f"{known.distance(found):.1g} of their size; give that one, or check=False to take this one"
        )
