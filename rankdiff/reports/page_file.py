"""The pages of an SQLite file and the trees that its tables are.

Pages are read, not mapped: a file that is cut short under a mapping kills the process.
"""

from __future__ import annotations

import os
from typing import TypeVar

import numpy as np
import pyarrow as pa

from rankdiff.kernels.intervals import I64
from rankdiff.kernels.sqlite_pages import U8
from rankdiff.reports.header import MAGIC
from rankdiff.reports.page_plan import UnfitError

T = TypeVar("T", bound=np.generic)

_WIDEST_STEP = 4  # pages: to read one or two that are not wanted costs less than another system call
_DEEPEST = 20  # SQLite's own limit
_LEAF, _INTERIOR = 13, 5
_INTERIOR_HEADER_BYTES = 12
_LOCK_BYTE = 1 << 30  # the page that holds it is never used
_UTF8, _NEWEST_FORMAT = 1, 4


def room(size: int, kind: type[T]) -> np.ndarray[tuple[int], np.dtype[T]]:
    """An array of Arrow's memory: what threads give back to that of the system stays with them."""
    return np.frombuffer(pa.allocate_buffer(size * np.dtype(kind).itemsize), kind)


class Pages:
    """Pages of a database file, by number from 1 on.

    Parameters
    ----------
    file : int
        Descriptor.

    Attributes
    ----------
    bytes : int
        Size of a page.
    count : int
        Whole pages in the file.
    auto_vacuum : bool

    Raises
    ------
    UnfitError
        When its header has something that the page reader does not know; also by every method, when a page
        cannot be read.
    """

    def __init__(self, file: int) -> None:
        self.file = file
        header = os.pread(file, 100, 0)
        if len(header) < 100 or not header.startswith(MAGIC):
            raise UnfitError("no header")
        size = int.from_bytes(header[16:18], "big")
        self.bytes = 65536 if size == 1 else size
        if self.bytes < 512 or self.bytes & (self.bytes - 1):
            raise UnfitError("page size")
        if header[20] != 0:
            raise UnfitError("reserved bytes")
        if not 1 <= int.from_bytes(header[44:48], "big") <= _NEWEST_FORMAT:
            raise UnfitError("schema format")
        if int.from_bytes(header[56:60], "big") != _UTF8:
            raise UnfitError("encoding")
        self.auto_vacuum = any(header[52:56])
        self.count = os.fstat(file).st_size // self.bytes
        told = int.from_bytes(header[28:32], "big")
        if header[24:28] == header[92:96] and told:  # else an old writer left the count as it was
            self.count = min(self.count, told)

    def check(self, numbers: I64) -> None:
        """Refuse numbers of pages that no tree can have."""
        lock_page = _LOCK_BYTE // self.bytes + 1
        if np.any((numbers < 2) | (numbers > self.count) | (numbers == lock_page)):
            raise UnfitError("page number")

    def read(self, number: int) -> U8:
        """One page."""
        self.check(np.array([number]))
        page = np.empty(self.bytes, np.uint8)
        self._fill(page, number)
        return page

    def read_all(self, numbers: I64) -> tuple[U8, I64]:
        """Several pages, with others between: the bytes, and where in them each of the pages begins."""
        step = np.diff(numbers)
        breaks = (step < 1) | (step > _WIDEST_STEP)
        slot = np.concatenate(([0], np.cumsum(np.where(breaks, 1, step))))
        data = room((int(slot[-1]) + 1) * self.bytes, np.uint8)
        first = np.concatenate(([0], np.flatnonzero(breaks) + 1))
        last = np.concatenate((np.flatnonzero(breaks), [numbers.size - 1]))
        for number, begin, end in zip(numbers[first], slot[first], slot[last] + 1, strict=True):
            self._fill(data[begin * self.bytes : end * self.bytes], int(number))
        return data, slot * self.bytes

    def _fill(self, out: U8, number: int) -> None:
        if os.preadv(self.file, [out.data], (number - 1) * self.bytes) != out.size:
            raise UnfitError("cut short")


def leaves_of(pages: Pages, root: int) -> I64:
    """Numbers of the leaves of a table, in its order.

    Raises
    ------
    UnfitError
        When the tree that begins on page `root` is none.
    """
    level = np.array([root], np.int64)
    for _ in range(_DEEPEST):
        pages.check(level)
        if level.size > pages.count or np.unique(level).size < level.size:
            raise UnfitError("a page twice")
        if pages.read(int(level[0]))[0] == _LEAF:
            return level
        level = np.concatenate([_children(pages.read(int(number))) for number in level])
    raise UnfitError("depth")


def _children(page: U8) -> I64:
    """Page numbers in an interior page, in the order of their rows."""
    cells = int(page[3]) << 8 | int(page[4])
    if page[0] != _INTERIOR or not 0 < cells <= (page.size - 8) // 6:
        raise UnfitError("interior page")
    first = _INTERIOR_HEADER_BYTES + 2 * cells
    at = page[_INTERIOR_HEADER_BYTES:first].view(">u2").astype(np.int64)
    if at.min() < first or at.max() > page.size - 5:  # a number, and a key of at least one byte
        raise UnfitError("cell pointer")
    four = np.concatenate((at, [8]))[:, None] + np.arange(4)
    return page[four].view(">u4")[:, 0].astype(np.int64)
