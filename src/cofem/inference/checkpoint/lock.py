"""One writer for each checkpoint: a lock that vanishes with the process that holds it."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from pathlib import Path

try:
    import fcntl
except ImportError:  # not a POSIX system: there is no lock
    fcntl = None  # type: ignore[assignment]

#: How a lock file begins; others are left alone.
MARK = b"cofem lock: "


class Lock:
    """The right to write a checkpoint, from now until `release`.

    A file beside the checkpoint, ``.run.npz.lock``, is locked by the system for as long as this process holds
    it open. A process that is killed leaves the file, but not the lock, so that the next one takes it at
    once. Where the system has no such locks, nobody is refused.

    Parameters
    ----------
    path : Path
        The checkpoint, absolute and with links followed.

    Raises
    ------
    ValueError
        If another fit holds it, in this process or another one, or if the folder cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "run.npz"
    >>> lock = Lock(path)
    >>> Lock(path)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    ValueError: checkpoint '...run.npz' is in use by another fit (process ... on ...); wait for it...
    >>> lock.release()
    >>> Lock(path).release(), list(path.parent.iterdir())
    (None, [])
    """

    def __init__(self, path: Path) -> None:
        self._handle: int | None = None
        self._file = path.with_name(f".{path.name}.lock")
        if fcntl is None:
            return
        try:
            self._acquire(path)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise ValueError(
                    f"checkpoint {str(path)!r} cannot be written: {error.strerror}; choose another folder"
                ) from error
            # A file system without locks, a name that is too long: as if there was no other fit.

    def _acquire(self, path: Path) -> None:
        while self._handle is None:
            handle = os.open(self._file, os.O_CREAT | os.O_RDWR, 0o666)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not _is_at(handle, self._file):  # the one before let go of it in between, and removed it
                    continue
                found = os.read(handle, len(MARK))
                if found and not MARK.startswith(found):
                    raise ValueError(
                        f"checkpoint {str(path)!r}: its lock would be {str(self._file)!r}, which is a file "
                        "of another kind; it is left alone, choose another name"
                    )
                os.truncate(handle, 0)
                os.pwrite(handle, MARK + f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
                self._handle = handle
            except BlockingIOError as error:
                raise ValueError(
                    f"checkpoint {str(path)!r} is in use by another fit ({_holder(handle)}); wait for it to "
                    "end, or choose another name"
                ) from error
            finally:
                if self._handle is None:
                    os.close(handle)

    def release(self) -> None:
        """Let go of the checkpoint; nothing happens if that is done already."""
        handle, self._handle = self._handle, None
        if handle is None:
            return
        with contextlib.suppress(OSError):
            if _is_at(handle, self._file):
                self._file.unlink()
        os.close(handle)

    def __del__(self) -> None:
        self.release()


def _is_at(handle: int, path: Path) -> bool:
    """Tell whether an open file is the one of that name."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def _holder(handle: int) -> str:
    words = os.pread(handle, 200, 0).removeprefix(MARK).decode(errors="replace")
    return " ".join(words.split()) or "another process"
