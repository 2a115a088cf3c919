"""The file of a posterior: arrays and JSON in an ``.npz`` archive."""

from __future__ import annotations

import json
import os
import zipfile
from typing import Any

import numpy as np

from cofem._arrays import on_device_of, to_numpy
from cofem.files import read_npz, write_npz
from cofem.inference.analysis.method import AnalysisEM
from cofem.operators import Operator, as_operator
from cofem.posterior.posterior import Posterior
from cofem.status import Status, StatusCode

FORMAT = "cofem-posterior"
FORMAT_VERSION = 2

_ARRAYS = ("mean", "variance", "alpha", "y")


def save(posterior: Posterior, path: str | os.PathLike[str]) -> None:
    """Write a posterior without its operator, whole or not at all; see `Posterior.save`."""
    header, arrays = _contents(posterior)
    for i, task in enumerate(posterior.tasks or ()):
        inner, parts = _contents(task)
        header.setdefault("tasks", []).append(inner)
        arrays |= {f"task{i}_{name}": values for name, values in parts.items()}
    write_npz(path, header, arrays)


def _contents(posterior: Posterior) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return what is saved of one posterior: words and arrays."""
    header = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "noise_std": np.asarray(posterior.noise_std).tolist(),
        "method": posterior.method,
        "scale": posterior.scale,
        "status": [
            posterior.status.code.value,
            posterior.status.message,
            list(posterior.status.notes),
            list(posterior.status.warnings),
        ],
    }
    arrays = {name: getattr(posterior, name) for name in (*_ARRAYS, "weights", "blocks")}
    if posterior.gaussian is not None:
        arrays |= {"gaussian_mean": posterior.gaussian[0], "gaussian_variance": posterior.gaussian[1]}
    arrays |= {f"history_{name}": values for name, values in posterior.history.items()}
    return header, {name: to_numpy(values) for name, values in arrays.items() if values is not None}


def load(path: str | os.PathLike[str], operator: Any = None, analysis: Any = None) -> Posterior:
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
        contents = read_npz(path)
        header = json.loads(str(contents.pop("header")))
        if header["format"] != FORMAT:
            raise ValueError(f"its format is {header['format']!r}")
    except (KeyError, ValueError, TypeError, EOFError, zipfile.BadZipFile, AttributeError) as error:
        raise ValueError(
            f"path must be a file written by Posterior.save, but {str(path)!r} is not: {error}"
        ) from error
    if header["version"] > FORMAT_VERSION:
        raise ValueError(
            f"path {str(path)!r} was written by a newer cofem (format {header['version']}, this one reads "
            f"up to {FORMAT_VERSION}); upgrade cofem to read it"
        )
    try:
        return _rebuild(header, contents, operator, analysis)
    except (KeyError, IndexError) as error:
        raise ValueError(f"path {str(path)!r} is damaged: {error} is missing") from error


def _rebuild(
    header: dict[str, Any], contents: dict[str, np.ndarray], operator: Any, analysis: Any
) -> Posterior:
    """Make a posterior from what was saved."""
    tasks = []
    for i, part in enumerate(header.get("tasks", [])):
        prefix = f"task{i}_"
        parts = {
            name.removeprefix(prefix): values for name, values in contents.items() if name.startswith(prefix)
        }
        own = (each[i] if isinstance(each, list | tuple) else each for each in (operator, analysis))
        tasks.append(_rebuild(part, parts, *own))
    y = contents["y"] if not tasks else contents.get("y")
    phi = None if operator is None or isinstance(operator, list | tuple) else as_operator(operator)
    if phi is not None and y is not None and phi.shape != (y.shape[0], contents["mean"].shape[0]):
        wanted = (y.shape[0], contents["mean"].shape[0])
        raise ValueError(f"operator must have shape {wanted} as in the fit, got {phi.shape}")
    rows = None
    if analysis is not None and not isinstance(analysis, list | tuple):
        rows = _checked_rows(analysis, header["method"], contents)
    code, message, notes, *warnings = header["status"]  # older files have no warnings
    noise_std = header["noise_std"]
    if phi is not None and phi.device_array is not None:
        kept = {"mean", "variance", "alpha", "y", "weights"} & contents.keys()
        contents = contents | {name: on_device_of(phi.device_array, contents[name]) for name in kept}
        y = contents.get("y")
    gaussian = None
    if "gaussian_mean" in contents:
        gaussian = (contents["gaussian_mean"], contents["gaussian_variance"])
    return Posterior(
        **{name: contents[name] for name in ("mean", "variance")},
        alpha=contents["alpha"] if not tasks else contents.get("alpha"),
        y=y,
        weights=contents.get("weights"),
        blocks=contents.get("blocks"),
        gaussian=gaussian,
        tasks=tuple(tasks) or None,
        noise_std=np.array(noise_std) if isinstance(noise_std, list) else noise_std,
        method=header["method"],
        status=Status(StatusCode(code), message, tuple(notes), tuple(*warnings)),
        history={
            name.removeprefix("history_"): values
            for name, values in contents.items()
            if name.startswith("history_")
        },
        operator=phi,
        analysis=rows,
        scale=header.get("scale", 1.0),
    )


def _checked_rows(analysis: Any, method: str, contents: dict[str, np.ndarray]) -> Operator:
    """Return the analysis operator of a posterior, or refuse one that cannot be it."""
    rows = as_operator(analysis)
    if method != AnalysisEM.name:
        raise ValueError(f"analysis is for posteriors of fits with analysis=B, this one is of {method!r}")
    alpha = contents.get("alpha")
    wanted = (rows.shape[0] if alpha is None else alpha.shape[0], contents["mean"].shape[0])
    if rows.shape != wanted:
        raise ValueError(f"analysis must have shape {wanted} as in the fit, got {rows.shape}")
    return rows
