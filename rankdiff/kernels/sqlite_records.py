"""Records of SQLite tables, from their bytes to columns.

As in `sqlite_pages` every offset is tested before it is read, and what breaks a rule is refused.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rankdiff.kernels._jit import jit
from rankdiff.kernels.intervals import I64
from rankdiff.kernels.sqlite_pages import (
    AT_LEAST,
    LONGEST_ROW_BITS,
    NONE_OF,
    ONE_OF,
    PRESENT,
    REFUSED,
    U8,
    byte,
    integer_at,
    size_of,
    varint,
)

# Of a column that is read: the class of the values kept, all others being null.
AS_INTEGER, AS_TEXT, AS_BLOB = 0, 1, 2
# Of a field of the record.
ORDINARY, ROWID, DEFAULTED = 0, 1, 2

LENGTH_BITS = LONGEST_ROW_BITS  # low bits of where a text or blob is; above them the place of its first byte

_NULL, _REAL, _ZERO, _ONE, _FIRST_BLOB = 0, 7, 8, 9, 12
_MOST_BYTES = 1 << LENGTH_BITS


@jit
def _integer(data: U8, at: int, kind: int) -> int:
    """An integer of serial type 1 to 6, 8 or 9."""
    if kind >= _ZERO:
        return kind - _ZERO
    size = size_of(kind)
    if at + 8 <= data.size:
        return integer_at(data, at, size)
    value = byte(data, at)
    if value >= 128:
        value -= 256
    for i in range(1, size):
        value = (value << 8) | byte(data, at + i)
    return value


@jit
def _passes(value: int, operator: int, operands: I64, first: int, end: int) -> bool:
    """Whether an integer passes a test with sorted operands."""
    low, high = first, end
    while low < high:
        middle = (low + high) // 2
        if operands[middle] < value:
            low = middle + 1
        else:
            high = middle
    found = low < end and operands[low] == value
    if operator == ONE_OF:
        return found
    if operator == NONE_OF:
        return not found
    # One operand: where the search ended says on which side of it the value lies.
    at_least = found or low == end
    return at_least if operator == AT_LEAST else not at_least


@jit
def records(
    data: U8, cells: I64, fields: I64, tests: I64, operands: I64, values: I64, valid: npt.NDArray[np.bool_],
    wrong: I64,
) -> int:  # fmt: skip
    """Decode the records that pass all tests.

    Parameters
    ----------
    data : (m,) uint8
        Payloads, each in one piece.
    cells : (4, n) int64
        As from `leaf_cells`.
    fields : (f, 3) int64
        For each field of the record: the column it goes to (-1: none), the class of its values (AS_...), and its
        nature: ORDINARY, ROWID (the cell's rowid stands for it) or DEFAULTED (a record that is too short to have
        it is refused). Other fields that a record lacks are null.
    tests : (t, 4) int64
        For each: the field, ONE_OF, NONE_OF, PRESENT, AT_LEAST or BELOW, and its first and the end of its
        `operands`. Null passes none.
    operands : (o,) int64
        Sorted within each test.
    values : (c, n) int64, written
        Columns: integers, and ``place << LENGTH_BITS | length`` of text and blobs in `data`.
    valid : (c, n) bool, written
        Not null.
    wrong : (c,) int64, added to
        Values of another class, which are null.

    Returns
    -------
    int
        Records that passed, written from 0 on in their order; REFUSED when one breaks a rule (one that does not pass
        may break it behind the fields tested).
    """
    width = fields.shape[0]
    kinds = np.zeros(width, np.int64)
    places = np.zeros(width, np.int64)
    taken = np.flatnonzero(fields[:, 0] >= 0)
    last_tested = tests[:, 0].max() if tests.shape[0] else -1
    kept = 0
    for row in range(cells.shape[1]):
        begin = cells[0, row]
        end = begin + cells[1, row]
        if begin < 0 or end > data.size or cells[1, row] >= _MOST_BYTES:
            return REFUSED
        size, at = varint(data, begin, end)
        if at < 0 or size <= at - begin or size > end - begin:
            return REFUSED  # SQLite reads a field even where the header says that there is none
        header_end = begin + size
        place = header_end
        passed = True
        for field in range(width):
            kind = _NULL
            if at < header_end:
                kind = byte(data, at)
                if kind < 128:
                    at += 1
                else:
                    kind, at = varint(data, at, header_end)
                    if at < 0 or kind < 0 or kind >= 2 * _MOST_BYTES:
                        return REFUSED
            elif place != end or fields[field, 2] == DEFAULTED:
                return REFUSED
            kinds[field] = kind
            places[field] = place
            if kind < _ZERO:
                place += size_of(kind)
            elif kind >= _FIRST_BLOB:
                place += (kind - _FIRST_BLOB) >> 1
            elif kind > _ONE:
                return REFUSED  # 10 and 11 are reserved
            if place > end:
                return REFUSED
            if kind == _REAL and (data[place - 8] & 127) == 127 and data[place - 7] >= 240:
                return REFUSED  # not a finite number: SQLite makes null of some of these
            if field != last_tested:
                continue
            # SQLite looks no further either at a row that it leaves out.
            if at == header_end and place != end:
                return REFUSED
            for t in range(tests.shape[0]):
                sought = tests[t, 0]
                kind = int(kinds[sought])
                if fields[sought, 2] != ROWID and kind == _NULL:
                    passed = False
                elif tests[t, 1] != PRESENT:
                    if fields[sought, 2] == ROWID:
                        value = int(cells[2, row])
                    elif kind == _REAL or kind >= _FIRST_BLOB:
                        return REFUSED  # SQLite compares these by rules of their own
                    else:
                        value = _integer(data, int(places[sought]), kind)
                    passed = _passes(value, tests[t, 1], operands, tests[t, 2], tests[t, 3])
                if not passed:
                    break
            if not passed:
                break
        if not passed:
            continue
        if at != header_end or place != end:
            return REFUSED  # more fields than the table has, or more bytes than the fields
        for each in taken:
            field = int(each)
            column = fields[field, 0]
            kind = int(kinds[field])
            own = AS_INTEGER
            value = 0
            if fields[field, 2] == ROWID:
                value, kind = int(cells[2, row]), _ONE
            elif kind >= _FIRST_BLOB:
                own = AS_TEXT if kind & 1 else AS_BLOB
                value = (int(places[field]) << LENGTH_BITS) | ((kind - _FIRST_BLOB) >> 1)
            elif kind != _NULL and kind != _REAL:
                value = _integer(data, int(places[field]), kind)
            right = kind != _NULL and kind != _REAL and own == fields[field, 1]
            values[column, kept] = value if right else 0
            valid[column, kept] = right
            if kind != _NULL and not right:
                wrong[column] += 1
        kept += 1
    return kept


@jit
def gather(data: U8, where: I64, ends: I64, out: U8) -> int:
    """Copy pieces of `data` one behind the other.

    Parameters
    ----------
    data : (m,) uint8
    where : (n,) int64
        Pieces as in the columns of `records`.
    ends : (n,) int64
        Where each ends in `out`, so that they fill it.
    out : (k,) uint8, written

    Returns
    -------
    int
        Bytes written; REFUSED when a piece lies outside.
    """
    at = 0
    for i in range(where.size):
        first = where[i] >> LENGTH_BITS
        length = where[i] & (_MOST_BYTES - 1)
        if first < 0 or first + length > data.size or at + length != ends[i] or ends[i] > out.size:
            return REFUSED
        for k in range(length):
            out[at + k] = data[first + k]
        at += length
    return at
