"""The first 100 bytes of an SQLite file: enough to tell a complete export from a broken copy."""

from __future__ import annotations

import errno
import fcntl
import os
from dataclasses import dataclass

from rankdiff.errors import ReportError

EXPORT_AGAIN = (
    "Copy it again, or export it again: nsys export --type sqlite --include-blobs=true REPORT.nsys-rep"
)
MAGIC = b"SQLite format 3\x00"
_HEADER_BYTES = 100
_PENDING_BYTE = 0x40000000  # of SQLite's locking protocol; the next ones are for shared and reserved locks
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EIO, errno.EINVAL}


@dataclass(frozen=True)
class Header:
    """What opening the file depends on.

    Attributes
    ----------
    wal : bool
        Written in WAL mode: opening it the usual way would create files beside it.
    log : str or None
        Path of a write-ahead log that holds changes; None when there is none.
    """

    wal: bool
    log: str | None


def read_header(path: str, name: str) -> Header:
    """Read the header of an SQLite file.

    Parameters
    ----------
    path, name : str
        Where it is, and how messages call it.

    Raises
    ------
    ReportError
        When it cannot be read, is not an SQLite database, or is shorter than its header says.
    """
    try:
        with open(path, "rb") as file:
            header = file.read(_HEADER_BYTES)
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise ReportError(f"{name}: cannot be read ({error.strerror})") from error
    if len(header) < _HEADER_BYTES or not header.startswith(MAGIC):
        raise ReportError(f"{name}: expected an SQLite database, found something else", EXPORT_AGAIN)
    wal = 2 in (header[18], header[19])
    log = f"{path}-wal" if wal and _has_content(f"{path}-wal") else None
    page_bytes = int.from_bytes(header[16:18], "big")
    expected = int.from_bytes(header[28:32], "big") * (65536 if page_bytes == 1 else page_bytes)
    # The page count holds only if both change counters agree (older writers leave it stale), and a log may
    # hold pages that the file does not have yet.
    if header[24:28] == header[92:96] and log is None and size < expected:
        raise ReportError(
            f"{name}: truncated copy, expected {expected} bytes by its header, found {size}", EXPORT_AGAIN
        )
    return Header(wal, log)


def locks_work(path: str) -> bool:
    """Say whether the file system has locks at all: SQLite calls a file "busy" in either case.

    Some Lustre and NFS mounts refuse every lock. There nobody can hold one; elsewhere a refused lock means
    that somebody writes.
    """
    try:
        with open(path, "rb") as file:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, _PENDING_BYTE)
    except OSError as error:
        return error.errno not in _NO_LOCKS
    return True


def _has_content(path: str) -> bool:
    try:
        return os.path.getsize(path) > 0
    except OSError:
        return False
