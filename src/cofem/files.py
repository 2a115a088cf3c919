"""Files of arrays: read without ever running what is in them, written whole or not at all."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import os
import secrets
import stat
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np

from cofem._memory import available_bytes, describe_bytes

#: What `read_array` can read.
SUFFIXES = (".npy", ".npz", ".csv")

#: What a file that is not what it should be makes of its readers.
UNREADABLE = (
    OSError,
    KeyError,
    IndexError,
    ValueError,
    TypeError,
    EOFError,
    AttributeError,
    MemoryError,
    RecursionError,
    NotImplementedError,
    OverflowError,
    zipfile.BadZipFile,
)


# --- reading ----------------------------------------------------------------------------------------


def read_array(source: str) -> np.ndarray:
    """Read numbers from a ``.npy``, ``.npz`` or ``.csv`` file.

    Parameters
    ----------
    source : str
        Path of the file. An ``.npz`` file with several arrays needs the name of one after a colon:
        ``data.npz:y``. In the same way ``table.csv:flux`` is one column of a ``.csv`` file, by its name in
        the header or by its number, from 0.

    Returns
    -------
    ndarray
        Real, complex, integer or boolean. A ``.csv`` file with one column or one row gives a vector. Its
        first line is a header if none of its entries is a number.

    Raises
    ------
    ValueError
        If there is no such file, if it does not hold an array of numbers, or if what it says it holds is more
        than is in the file or fits into memory; the message names the file.

    Examples
    --------
    >>> import numpy as np, os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "y.csv")
    >>> np.savetxt(path, [1.0, 2.0], delimiter=",")
    >>> read_array(path)
    array([1., 2.])
    """
    path, key = split_source(source)
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path}: unknown kind of file, must be one of {', '.join(SUFFIXES)}")
    if not os.path.isfile(path):
        raise ValueError(f"{path}: no such file")
    try:
        with warnings.catch_warnings(action="ignore"):  # such as one about files of Python 2
            found = _READERS[path.suffix](path, key)
    except ValueError as error:
        raise ValueError(f"{path}: {_first_line(error)}") from error
    except Exception as error:  # a foreign file fails in many ways
        raise ValueError(f"{path}: cannot be read ({_first_line(error)})") from error
    if found.dtype.kind not in "biufc":
        raise ValueError(f"{path}: must hold numbers, got dtype {found.dtype}")
    return found


def split_source(source: str) -> tuple[Path, str | None]:
    """Return the path of a file and the name of the array or column in it, if one is named after a colon.

    Examples
    --------
    >>> split_source("data.npz:y")
    (PosixPath('data.npz'), 'y')
    """
    head, colon, key = source.rpartition(":")
    if colon and head.endswith((".npz", ".csv")):
        return Path(head), key
    return Path(source), None


def read_npz(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Read all arrays of an ``.npz`` file, each checked against its checksum.

    `numpy.load` stops reading at the last number of an array, before the checksum is compared.
    """
    with open(path, "rb") as file:
        try:
            archive = zipfile.ZipFile(file)
            members = archive.infolist()
            _check_memory(sum(member.file_size for member in members))
            return {member.filename.removesuffix(".npy"): _read_member(archive, member) for member in members}
        except (ValueError, zipfile.BadZipFile):
            raise
        except Exception as error:  # a damaged archive fails in many ways
            raise zipfile.BadZipFile(f"cannot be read ({_first_line(error)})") from error


def read_archive(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Read the header and the arrays of a file that `write_npz` wrote.

    Raises
    ------
    ValueError
        If it is no such file; in one line, without the path.
    """
    try:
        arrays = read_npz(path)
        return _as_header(arrays.pop("header", None)), arrays
    except FileNotFoundError:
        raise
    except UNREADABLE as error:
        raise ValueError(one_line(error)) from error


def read_header(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the header alone; `ValueError` as in `read_archive`."""
    try:
        with zipfile.ZipFile(path) as archive:
            member = archive.getinfo("header.npy")
            _check_memory(member.file_size)
            return _as_header(_read_member(archive, member))
    except UNREADABLE as error:
        raise ValueError(one_line(error)) from error


def _as_header(text: np.ndarray | None) -> dict[str, Any]:
    if text is None:
        raise ValueError("it has no header")
    header = json.loads(str(text))
    if not isinstance(header, dict):
        raise ValueError(f"its header is {_brief(header)}")
    return header


def check_arrays(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Refuse arrays that are not those which were written with a header; of files that say which."""
    written = header.get("arrays", {})
    if not isinstance(written, dict):
        raise ValueError(f"arrays must be a dictionary, got {_brief(written)}")
    for name, known in written.items():
        if name not in arrays:
            raise ValueError(f"{name} is missing")
        if digest(arrays[name]) != known:
            raise ValueError(f"{name} is not what was written")


def is_sealed(header: Mapping[str, Any]) -> bool:
    """Tell whether a header is the one that was written.

    Examples
    --------
    >>> is_sealed(sealed({"rng": 1})), is_sealed(sealed({"rng": 1}) | {"rng": 2})
    (True, False)
    """
    return header.get("seal") == sealed(header)["seal"]


def sealed(header: Mapping[str, Any]) -> dict[str, Any]:
    """Return a header with a hash of all that is in it."""
    bare = {name: value for name, value in header.items() if name != "seal"}
    return bare | {"seal": digest(np.array(json.dumps(bare, sort_keys=True)))}


def digest(array: np.ndarray) -> str:
    """Return a short hash of an array's type, shape and values.

    Examples
    --------
    >>> digest(np.ones(2)) == digest(np.ones(2)), digest(np.ones(2)) == digest(np.ones((1, 2)))
    (True, False)
    """
    found = hashlib.sha256(f"{array.dtype.str} {array.shape}".encode())
    found.update(np.ascontiguousarray(array).view(np.uint8).data if array.size else b"")
    return found.hexdigest()[:16]


def check_unpacked(path: str | os.PathLike[str]) -> None:
    """Refuse an archive that unpacks to more than fits into memory, by what its directory says."""
    with zipfile.ZipFile(path) as archive:
        _check_memory(sum(member.file_size for member in archive.infolist()))


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    return _from_npy(io.BytesIO(archive.read(member)), member.file_size)


def _read_npy(path: Path, key: str | None) -> np.ndarray:
    with open(path, "rb") as file:
        return _from_npy(file, os.fstat(file.fileno()).st_size)


def _read_npz(path: Path, key: str | None) -> np.ndarray:
    with zipfile.ZipFile(path) as archive:
        members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
        if key is None and len(members) != 1:
            raise ValueError(f"holds {len(members)} arrays; name one of {_list(members)} after a colon")
        if key is not None and key not in members:
            raise ValueError(f"has no array {key!r}; there are {_list(members)}")
        member = members[next(iter(members)) if key is None else key]
        _check_memory(member.file_size)
        return _read_member(archive, member)


def _read_csv(path: Path, key: str | None) -> np.ndarray:
    _check_memory(path.stat().st_size)
    # A byte-order mark, which spreadsheets write, is left out.
    with open(path, encoding="utf-8-sig", newline="") as file:
        names, lines = _csv_header(file.readline())
    wanted = None if key is None else _csv_column(key, names)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # an empty file is a warning to NumPy
        try:
            table = np.loadtxt(
                path,
                delimiter=",",
                ndmin=2,
                encoding="utf-8-sig",
                skiprows=lines,
                usecols=wanted,
                quotechar='"',
            )
        except UserWarning as warning:
            raise ValueError(str(warning)) from warning
    return table.reshape(-1) if 1 in table.shape else table


def _csv_header(line: str) -> tuple[list[str], int]:
    """Return the names in the first line of a table, and how many lines they take: 0 where there are none."""
    commented = line.startswith("#")  # as `numpy.savetxt` writes it; NumPy leaves such lines out by itself
    names = [name.strip() for name in next(csv.reader([line.lstrip("# ") if commented else line]), [])]
    if not any(names) or any(_is_number(name) for name in names):
        return [], 0
    return names, 0 if commented else 1


def _csv_column(key: str, names: list[str]) -> int:
    if key in names:
        if names.count(key) > 1:
            raise ValueError(f"has {names.count(key)} columns {key!r}; give the number of one, from 0")
        return names.index(key)
    if key.isascii() and key.isdigit():
        return int(key)
    there = f"there are {_list(dict.fromkeys(names))}" if names else "it has no header: give a number, from 0"
    raise ValueError(f"has no column {key!r}; {there}")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


_READERS: dict[str, Callable[[Path, str | None], np.ndarray]] = {
    ".npy": _read_npy,
    ".npz": _read_npz,
    ".csv": _read_csv,
}


def _from_npy(file: IO[bytes], size: int) -> np.ndarray:
    """Read an array in NumPy's format from a file of that many bytes; no memory is asked for in vain."""
    version = np.lib.format.read_magic(file)
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in readers:  # the only other one is for records with names
        raise ValueError(f"must hold numbers, got an array in NumPy's format {version[0]}.{version[1]}")
    shape, _, dtype = readers[version](file)
    if dtype.hasobject:
        raise ValueError("must hold numbers, got Python objects, which are never loaded")
    if any(length < 0 for length in shape):
        raise ValueError(f"is damaged: it declares the shape {shape}")
    wanted, there = prod(shape) * dtype.itemsize, size - file.tell()
    if wanted > there:
        raise ValueError(
            f"is cut short or damaged: an array of shape {_brief(shape)} takes {describe_bytes(wanted)}, "
            f"there are {describe_bytes(there)}"
        )
    _check_memory(wanted)
    file.seek(0)
    return np.lib.format.read_array(file, allow_pickle=False)


def _check_memory(size: int) -> None:
    available = available_bytes()
    if available is not None and size > available:
        raise ValueError(
            f"takes {describe_bytes(size)} of memory once it is read; {describe_bytes(available)} are free"
        )


def _list(names: Mapping[str, Any]) -> str:
    """Return names, not too many of them."""
    first = list(names)[:10]
    return ", ".join(first) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


def _brief(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def one_line(error: BaseException) -> str:
    """Return what an exception says as one line of bounded length.

    Examples
    --------
    >>> one_line(ValueError("one   two")), one_line(KeyError("mean"))
    ('one two', "KeyError: 'mean'")
    """
    words = " ".join(str(error).split())
    named = not isinstance(error, ValueError | OSError | zipfile.BadZipFile) or not words
    text = f"{type(error).__name__}: {words}" if named else words
    return text if len(text) <= 300 else f"{text[:297]}..."


# --- writing ----------------------------------------------------------------------------------------


def write_npz(
    path: str | os.PathLike[str], header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> None:
    """Write arrays and a header of JSON as an ``.npz`` file, whole or not at all; see `replacing`.

    The header says what was written: a hash of each array, and one of the header itself.

    Examples
    --------
    >>> import json, numpy as np, os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "file.npz")
    >>> write_npz(path, {"format": "example"}, {"x": np.ones(2)})
    >>> header, arrays = read_archive(path)
    >>> header["format"], arrays["x"].tolist(), is_sealed(header), check_arrays(header, arrays)
    ('example', [1.0, 1.0], True, None)
    """
    words = sealed({**header, "arrays": {name: digest(array) for name, array in arrays.items()}})
    with replacing(path) as part, open(part, "wb") as file:
        np.savez(file, header=np.array(json.dumps(words)), **arrays)  # type: ignore[arg-type]


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give the name of an empty file to write in place of `path`, which it becomes when all is written.

    At any moment `path` is whole: the file of before or the new one. A link is followed: what it points to is
    replaced. A file that was there keeps its mode; a new one has what the umask leaves. After an exception
    `path` is as it was.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "words.txt"
    >>> with replacing(path) as part:
    ...     _ = part.write_text("all of it")
    >>> path.read_text()
    'all of it'
    """
    target = resolved(path)
    old = _status(target)
    if old is not None and not stat.S_ISREG(old.st_mode):
        raise OSError(f"{os.fspath(path)!r} is not a plain file")
    part = _new_file(target.parent, suffix=f".part{target.suffix}")
    try:
        if old is not None:
            part.chmod(stat.S_IMODE(old.st_mode) | stat.S_IWUSR)  # what was private is so from the start
        yield part
        _flush(part)
        if old is not None:
            part.chmod(stat.S_IMODE(old.st_mode))
        os.replace(part, target)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
    with contextlib.suppress(OSError):  # the new name is safe once the folder is; not every system has this
        _flush(target.parent)


def resolved(path: str | os.PathLike[str]) -> Path:
    """Return where a path leads: absolute, links followed."""
    return Path(os.path.realpath(path))


def same_file(one: str | os.PathLike[str], other: str | os.PathLike[str]) -> bool:
    """Tell whether two paths lead to one file, by links or other spellings, whether or not it exists.

    Examples
    --------
    >>> same_file("a/../result.npz", "./result.npz"), same_file("a.npz", "b.npz")
    (True, False)
    """
    if resolved(one) == resolved(other):
        return True
    try:
        return os.path.samefile(one, other)
    except (OSError, ValueError):
        return False


def check_writable(path: str | os.PathLike[str], name: str) -> None:
    """Refuse a file that cannot be written, by trying; `name` is the argument it came by.

    Examples
    --------
    >>> check_writable("no/such/folder/result.npz", "out")
    Traceback (most recent call last):
    ...
    ValueError: out no/such/folder/result.npz: there is no folder no/such/folder
    """
    label = f"{name} {os.fspath(path)}"
    try:
        target = resolved(path)
        old = _status(target)
        if old is not None and stat.S_ISDIR(old.st_mode):
            raise ValueError(f"{label} is a folder; give the name of a file")
        if old is not None and not stat.S_ISREG(old.st_mode):
            raise ValueError(f"{label} is not a plain file; choose another name")
        if not target.parent.is_dir():
            given = Path(path).parent
            raise ValueError(f"{label}: there is no folder {target.parent if given.is_dir() else given}")
        if old is not None and not os.access(target, os.W_OK):
            raise ValueError(f"{label} is write-protected; choose another name")
        _new_file(target.parent, suffix=f".part{target.suffix}").unlink()
    except OSError as error:
        raise ValueError(
            f"{label} cannot be written: {error.strerror or error}; choose another place"
        ) from error


def spare_paths(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give free names for what cannot be written to `path`: beside it, then in the temporary folder."""
    target = Path(path)
    for folder in (resolved(target).parent, Path(tempfile.gettempdir())):
        names = (folder / f"{target.stem}-{i}{target.suffix}" for i in range(1, 1000))
        free = next((name for name in names if not os.path.lexists(name)), None)
        if free is not None:
            yield free


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _new_file(folder: Path, suffix: str) -> Path:
    """Make an empty file with a name that nobody has; its mode is what the umask leaves."""
    while True:
        path = folder / f".cofem-{secrets.token_hex(8)}{suffix}"
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
            return path


def _flush(path: Path) -> None:
    """Have a file or a folder on the disk."""
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
