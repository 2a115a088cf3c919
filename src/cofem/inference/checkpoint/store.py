"""The file of a checkpoint: written, read, refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from cofem import __version__
from cofem._packing import pack, unpack
from cofem.files import (
    UNREADABLE,
    check_arrays,
    is_sealed,
    one_line,
    read_archive,
    read_header,
    resolved,
    write_npz,
)

FORMAT = "cofem-checkpoint"
FORMAT_VERSION = 6


class CheckpointWarning(UserWarning):
    """A checkpoint could not be written; the fit itself goes on.

    Examples
    --------
    Here the folder is gone after the first step:

    >>> import tempfile, warnings, numpy as np, cofem
    >>> folder = tempfile.TemporaryDirectory()
    >>> options = dict(checkpoint=folder.name + "/run.npz", checkpoint_every="1 step")
    >>> options["callback"] = lambda state: folder.cleanup()
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always", cofem.CheckpointWarning)
    ...     post = cofem.fit(np.eye(3), np.ones(3), noise_std=0.1, **options)
    >>> [warning.category.__name__ for warning in caught], post.converged
    (['CheckpointWarning'], True)
    """


def write(path: Path, contents: dict[str, Any]) -> None:
    """Write a checkpoint, whole or not at all."""
    arrays: dict[str, np.ndarray] = {}
    header = {"format": FORMAT, "version": FORMAT_VERSION, "cofem": __version__}
    header["contents"] = pack(contents, arrays)
    write_npz(path, header, arrays)


def read(path: Path) -> dict[str, Any]:
    """Read a checkpoint; `ValueError` if it is none, or if anything in it is not what was written."""
    try:
        header, arrays = read_archive(path)
        _check_format(header)
        version = int(header["version"])
    except FileNotFoundError as error:
        raise ValueError(f"resume: there is no file {str(path)!r}") from error
    except UNREADABLE as error:
        raise ValueError(
            f"resume must be a checkpoint of cofem.fit, but {str(path)!r} is not: {one_line(error)}"
        ) from error
    if version > FORMAT_VERSION:
        raise ValueError(
            f"resume: {str(path)!r} was written by a newer cofem (format {version}, this one reads up to "
            f"{FORMAT_VERSION}); upgrade cofem to go on with it"
        )
    if version < FORMAT_VERSION:
        raise ValueError(
            f"resume: {str(path)!r} was written by an older cofem (format {version}, this one reads "
            f"{FORMAT_VERSION}); go on with it there, or start afresh"
        )
    try:
        _check_seal(header)
        check_arrays(header, arrays)
        contents = unpack(header["contents"], arrays)
        return {name: contents[name] for name in ("rng", "fingerprints", "finished", "current")}
    except UNREADABLE as error:
        raise ValueError(f"resume: {str(path)!r} is damaged: {one_line(error)}") from error


def read_fingerprints(path: Path) -> dict[str, dict[str, Any]]:
    """Return whose checkpoint a file is, by task; `ValueError` if that cannot be told."""
    try:
        header = read_header(path)
        if int(header["version"]) != FORMAT_VERSION:
            raise ValueError(f"format {header['version']}, this cofem has {FORMAT_VERSION}")
        _check_seal(header)
        contents = dict(header["contents"]["dict"])
        found: dict[str, dict[str, Any]] = unpack(contents["fingerprints"], {})
        return found
    except UNREADABLE as error:
        raise ValueError(
            f"checkpoint {str(path)!r} exists, and whose it is cannot be told ({one_line(error)}); choose "
            "another name, or delete it"
        ) from error


def _check_format(header: dict[str, Any]) -> None:
    if header.get("format") != FORMAT:
        raise ValueError(f"its format is {header.get('format')!r}")


def _check_seal(header: dict[str, Any]) -> None:
    """Refuse a header that was changed: nothing of it is checked any further, and all of it is believed."""
    if not is_sealed(header):
        raise ValueError("its header is not what was written")


def as_path(path: Any, name: str) -> Path:
    """Return the path of a file, absolute and with links followed; `name` is the argument it came by."""
    try:
        return resolved(os.fsdecode(path))
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be the path of a file, got {path!r}") from error


def check_target(path: Path) -> None:
    """Refuse a file that cannot be written, or that holds something else."""
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError(f"checkpoint must be the path of a file in a folder that exists, got {str(path)!r}")
    if path.exists() and not path.is_file():
        raise ValueError(f"checkpoint must be the path of a plain file, got {str(path)!r}")
    if has_content(path) and not _is_checkpoint(path):
        raise ValueError(
            f"checkpoint {str(path)!r} exists and is not a checkpoint; it is left alone, choose another name"
        )


def has_content(path: Path) -> bool:
    """Tell whether there is a file that is not empty."""
    return path.is_file() and path.stat().st_size > 0


def _is_checkpoint(path: Path) -> bool:
    try:
        _check_format(read_header(path))
    except ValueError:
        return False
    return True
