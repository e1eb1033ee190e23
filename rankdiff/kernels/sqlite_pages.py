"""Cells of the leaves of SQLite tables: where on its page each row is.

The format is that of https://www.sqlite.org/fileformat2.html. Every offset is tested before it is read, for
the file may be damaged: a page or a record that breaks a rule makes the answer REFUSED, never a wrong value.
The rules are at least as strict as SQLite's own.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rankdiff.kernels._jit import jit
from rankdiff.kernels.intervals import I64

U8 = npt.NDArray[np.uint8]

REFUSED = -1

LONGEST_ROW_BITS = 31  # SQLite's rows have at most 2**31 - 1 bytes

# Kinds of the tests of rows: see `records`.
ONE_OF, NONE_OF, PRESENT, AT_LEAST, BELOW = 0, 1, 2, 3, 4

_SIZES = (
    0x88643210  # bytes of a value by serial type, four bits each from the lowest on; 8 and more are apart
)
_REAL, _ZERO = 7, 8
_FEW_OPERANDS = 8

_LEAF = 13
_HEADER_BYTES = 8  # of a leaf page
_LONGEST_VARINT, _LONGEST_SIZE = 9, 5


@jit
def byte(data: U8, at: int) -> int:
    """A byte as a number; the caller has tested the offset."""
    return 0 + int(data[at])  # numba leaves int() of a byte a byte; the sum has 64 bits


@jit
def varint(data: U8, at: int, end: int) -> tuple[int, int]:
    """A varint as a signed number and the offset behind it; offset REFUSED when it does not end before `end`."""
    value = 0
    for i in range(_LONGEST_VARINT):
        if at + i >= end:
            return 0, REFUSED
        last = byte(data, at + i)
        if i == _LONGEST_VARINT - 1:
            # The ninth byte has all of its 8 bits; the highest of the 56 before becomes the sign.
            if value >= 1 << 55:
                value -= 1 << 56
            return (value << 8) | last, at + i + 1
        value = (value << 7) | (last & 127)
        if last < 128:
            break
    return value, at + i + 1


@jit
def size_of(kind: int) -> int:
    """Bytes of a value of serial type 0 to 7."""
    return (_SIZES >> (4 * kind)) & 15


@jit
def integer_at(data: U8, at: int, size: int) -> int:
    """A big-endian integer of 1 to 8 bytes; the caller has tested that eight bytes are there."""
    # All eight at once and those that belong to others shifted out: sizes change too often to be guessed.
    high = (byte(data, at) << 24) | (byte(data, at + 1) << 16)
    high |= (byte(data, at + 2) << 8) | byte(data, at + 3)
    low = (byte(data, at + 4) << 24) | (byte(data, at + 5) << 16)
    low |= (byte(data, at + 6) << 8) | byte(data, at + 7)
    sign = 1 << 31
    return ((((high ^ sign) - sign) << 32) | low) >> (64 - 8 * size)


@jit
def leaf_cells(
    data: U8, pages: I64, page_bytes: int, tests: I64, operands: I64, cells: I64, ends: I64
) -> int:  # fmt: skip
    """Find the cells of table leaves.

    Parameters
    ----------
    data : (m,) uint8
        Pages, and anything else.
    pages : (p,) int64
        Where leaves begin in `data`, in the order of the table; all lie in it as a whole.
    page_bytes : int
        Size of a page, without reserved bytes at its end.
    tests : (t, 4) int64
    operands : (o,) int64
        As for `records`, tests in the order of their fields. Cells of ordinary records that certainly fail one are
        left out here; all others are for `records` to judge.
    cells : (4, n) int64, written
        For each cell: where its payload begins in `data`, payload bytes, rowid, and how much of the payload is
        here; the rest, if any, is in overflow pages, whose first one's number follows in 4 bytes.
    ends : (2,) int64, written
        First and last rowid, those of cells left out included.

    Returns
    -------
    int
        Number of cells; REFUSED when a page is no proper leaf, its rowids do not rise, or `cells` is too small.
    """
    most = page_bytes - 35
    least = (page_bytes - 12) * 32 // 255 - 23
    last_tested = int(tests[-1, 0]) if tests.shape[0] else -1
    count = 0
    seen = 0
    before = 0
    for p in range(pages.size):
        page = pages[p]
        end = page + page_bytes
        if page < 0 or end > data.size or data[page] != _LEAF:
            return REFUSED
        here = (byte(data, page + 3) << 8) | byte(data, page + 4)
        # SQLite has no empty leaf but the root of an empty table, which nobody reads.
        if here == 0 or here > (page_bytes - _HEADER_BYTES) // 6 or count + here > cells.shape[1]:
            return REFUSED
        first = page + _HEADER_BYTES + 2 * here
        for i in range(here):
            pointer = page + _HEADER_BYTES + 2 * i
            at = page + ((byte(data, pointer) << 8) | byte(data, pointer + 1))
            if at < first or at >= end:
                return REFUSED
            payload = byte(data, at)
            if payload < 128:
                at += 1
            else:
                # SQLite reads a size of more than 32 bits, or one padded to nine bytes, by rules of its own.
                payload, at = varint(data, at, min(end, at + _LONGEST_SIZE))
                if at < 0 or payload >> LONGEST_ROW_BITS:
                    return REFUSED
            rowid, at = varint(data, at, end)
            if at < 0:
                return REFUSED
            local = payload
            if payload > most:
                local = least + (payload - least) % (page_bytes - 4)
                if local > most:
                    local = least
            if at + local + (4 if local < payload else 0) > end:
                return REFUSED
            if seen == 0:
                ends[0] = rowid
            elif rowid <= before:
                return REFUSED
            before = rowid
            seen += 1
            # All in one piece, here and not in functions: this is most of the time that reading takes.
            size = byte(data, at) if local > 0 else 0
            # A header of small serial types, with fields behind those tested.
            if last_tested >= 0 and last_tested + 2 < size < 128 and size <= local == payload:
                place = at + size
                test = 0
                failed = False
                for field in range(last_tested + 1):
                    kind = byte(data, at + 1 + field)
                    if kind >= _REAL:
                        failed = False
                        break
                    while test < tests.shape[0] and tests[test, 0] == field:
                        some = tests[test, 3] - tests[test, 2]
                        if (
                            tests[test, 1] == ONE_OF
                            and some <= _FEW_OPERANDS
                            and kind > 0
                            and place + 8 <= end
                        ):
                            value = integer_at(data, place, size_of(kind))
                            hit = False
                            for k in range(tests[test, 2], tests[test, 3]):
                                hit |= operands[k] == value
                            failed |= not hit
                        test += 1
                    place += size_of(kind)
                if failed and place <= at + local:
                    continue
            cells[0, count] = at
            cells[1, count] = payload
            cells[2, count] = rowid
            cells[3, count] = local
            count += 1
    ends[1] = before
    return count
