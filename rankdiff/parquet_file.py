"""A Parquet file of digests opened for reading, and what it was."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rankdiff.errors import ReportError

MAKE_AGAIN = "Make it again: rankdiff digest REPORT -o DIR"
# What pyarrow raises for bytes that are not what they should be (names that are no UTF-8 among them).
DAMAGE = (pa.ArrowException, OSError, ValueError, KeyError, IndexError, OverflowError)

# What a path led to: size, and what the writer says of its content. Not the number of the file: one that another run
# has replaced by its equal is as good.
State = tuple[int, bytes]
KEY = b"rankdiff"  # under which the writer says it


@contextmanager
def opened(path: str) -> Iterator[tuple[Any, State]]:
    """Open a file of digests.

    Yields
    ------
    pyarrow.parquet.ParquetFile
    State

    Raises
    ------
    ReportError
        It cannot be read, or is no whole Parquet file.
    """
    try:
        # By ourselves: pyarrow takes no name that is not UTF-8.
        file = open(path, "rb")  # noqa: SIM115  # closed below
    except OSError as error:
        raise ReportError(f"{path}: cannot be read ({error.strerror})") from None
    with file:
        size = os.fstat(file.fileno()).st_size
        try:
            parquet = pq.ParquetFile(file, page_checksum_verification=True)
            said = (parquet.metadata.metadata or {}).get(KEY, b"")
        except DAMAGE:
            raise ReportError(f"{path}: a damaged Parquet file", MAKE_AGAIN) from None
        yield parquet, (size, said)
