"""Files of arrays: read without ever running what is in them, written whole or not at all."""

from __future__ import annotations

import contextlib
import io
import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

#: What `read_array` can read.
SUFFIXES = (".npy", ".npz", ".csv")


def read_array(source: str) -> np.ndarray:
    """Read numbers from a ``.npy``, ``.npz`` or ``.csv`` file.

    Parameters
    ----------
    source : str
        Path of the file. An ``.npz`` file with several arrays needs the name of one after a colon:
        ``data.npz:y``.

    Returns
    -------
    ndarray
        Real, complex, integer or boolean. A ``.csv`` file with one column or one row gives a vector.

    Raises
    ------
    ValueError
        If there is no such file or it does not hold an array of numbers; the message names the file.

    Examples
    --------
    >>> import numpy as np, os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "y.csv")
    >>> np.savetxt(path, [1.0, 2.0], delimiter=",")
    >>> read_array(path)
    array([1., 2.])
    """
    path, key = _split(source)
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path}: unknown kind of file, must be one of {', '.join(SUFFIXES)}")
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    try:
        found = _READERS[path.suffix](path, key)
    except ValueError as error:
        raise ValueError(f"{path}: {_first_line(error)}") from error
    except (OSError, EOFError, zipfile.BadZipFile, KeyError, MemoryError, SyntaxError) as error:
        raise ValueError(f"{path}: cannot be read ({_first_line(error)})") from error
    if found.dtype.kind not in "biufc":
        raise ValueError(f"{path}: must hold numbers, got dtype {found.dtype}")
    return found


def read_npz(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Read all arrays of an ``.npz`` file, each checked against its checksum.

    `numpy.load` stops reading at the last number of an array, before the checksum is compared.
    """
    with zipfile.ZipFile(path) as archive:
        return {
            name.removesuffix(".npy"): np.lib.format.read_array(
                io.BytesIO(archive.read(name)), allow_pickle=False
            )
            for name in archive.namelist()
        }


def write_npz(
    path: str | os.PathLike[str], header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> None:
    """Write arrays and a header of JSON as an ``.npz`` file, whole or not at all.

    Examples
    --------
    >>> import json, numpy as np, os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "file.npz")
    >>> write_npz(path, {"format": "example"}, {"x": np.ones(2)})
    >>> contents = read_npz(path)
    >>> json.loads(str(contents["header"])), contents["x"].tolist()
    ({'format': 'example'}, [1.0, 1.0])
    """
    target = Path(path)
    part = target.with_name(f".{target.name}.part")
    try:
        with open(part, "wb") as file:
            np.savez(file, header=np.array(json.dumps(header)), **arrays)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, target)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
    with contextlib.suppress(OSError):  # the new name is safe once the folder is; not every system has this
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _split(source: str) -> tuple[Path, str | None]:
    head, colon, key = source.rpartition(":")
    if colon and head.endswith(".npz"):
        return Path(head), key
    return Path(source), None


def _read_npy(path: Path, key: str | None) -> np.ndarray:
    return np.load(path, allow_pickle=False)


def _read_npz(path: Path, key: str | None) -> np.ndarray:
    with np.load(path, allow_pickle=False) as archive:
        names = list(archive.files)
        if key is None and len(names) != 1:
            raise ValueError(f"holds {len(names)} arrays; name one of {', '.join(names)} after a colon")
        if key is not None and key not in names:
            raise ValueError(f"has no array {key!r}; there are {', '.join(names)}")
        return archive[names[0] if key is None else key]


def _read_csv(path: Path, key: str | None) -> np.ndarray:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # an empty file is a warning to NumPy
        try:
            table = np.loadtxt(path, delimiter=",", ndmin=2, encoding="utf-8")
        except UserWarning as warning:
            raise ValueError(str(warning)) from warning
    return table.reshape(-1) if 1 in table.shape else table


_READERS: dict[str, Any] = {".npy": _read_npy, ".npz": _read_npz, ".csv": _read_csv}


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
