"""NVTX ranges and domains of an export."""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from rankdiff.kernels.intervals import I64
from rankdiff.reports.columns import kept, process_ids, rows_of, whole
from rankdiff.reports.filters import Filter
from rankdiff.reports.reader import BLOB, INTEGER, TEXT
from rankdiff.reports.tables import DOMAINS, NVTX_RANGES, ReportTables
from rankdiff.schema import check
from rankdiff.untrusted import LONGEST_NAME, shown

NVTX = "NVTX_EVENTS"
_RANGES = (59, 60, 70, 71)  # push/pop, start/end, and the same imported from text
_DOMAIN = 75


def add_nvtx(tables: ReportTables) -> None:
    """Make `ReportTables.nvtx` and what belongs to it.

    A name is in StringIds or in the row itself, in one file both ways. Marks, categories and thread names are
    not read at all: a thread called "NCCL ..." is no range.
    """
    columns = {
        **dict.fromkeys(("start", "end", "eventType", "globalTid", "domainId"), INTEGER),
        **dict.fromkeys(("textId", "jsonTextId"), INTEGER),
        "text": TEXT,
        "jsonText": TEXT,
        "binaryData": BLOB,
    }
    rows = tables.optional(
        NVTX,
        columns,
        required=("start", "end", "eventType", "globalTid"),
        filters=(Filter("eventType", "in", (*_RANGES, _DOMAIN)), Filter("globalTid", "not null")),
    )
    if rows is None:
        rows = pa.schema(list(columns.items())).empty_table()
    rows = kept(rows, tables.usable(NVTX, rows, "globalTid", open_ended=True))
    strings = _strings(tables, rows)
    frame = pl.DataFrame(
        pa.table(
            {
                "pid": process_ids(rows["globalTid"]),
                "thread": rows["globalTid"],
                "start_ns": tables.session(rows["start"]),
                "end_ns": tables.session(rows["end"]),
                "type": rows["eventType"],
                "domain": pc.fill_null(rows["domainId"], pa.scalar(0, pa.int64())),
                "payload": rows["binaryData"],
            }
        )
    )
    names, code = _names(rows, strings)
    frame = frame.with_columns(pl.Series("name", code), _json(rows, strings))
    tells_domain = pl.col("type") == _DOMAIN
    domains = frame.filter(tells_domain).select("pid", "domain", pl.col("name"))
    tables.domains = check(
        domains.with_columns(names.gather(domains["name"])).unique(maintain_order=True), DOMAINS, "domains"
    )
    tables.nvtx_names = names
    tables.nvtx = check(frame.filter(~tells_domain).select(NVTX_RANGES.names()), NVTX_RANGES, "nvtx")


def _strings(tables: ReportTables, rows: pa.Table) -> pa.Table:
    """The entries of StringIds that ranges name, but no environments: those hold a NUL."""
    ids = [pc.unique(rows[name].drop_null()).to_numpy() for name in ("textId", "jsonTextId")]
    strings = tables.reader.strings(np.concatenate(ids), whole=True)
    return strings.filter(pc.invert(pc.match_substring(strings["value"], "\0")))


def _names(rows: pa.Table, strings: pa.Table) -> tuple[pl.Series, I64]:
    """Names of ranges, distinct and fit to be shown, and which of them each row has."""
    own = whole(rows["text"]).dictionary_encode()
    in_row = pc.add(own.indices.cast(pa.int64()), len(strings))
    by_number = whole(rows_of(strings["id"], rows["textId"]))
    code = pc.coalesce(by_number, in_row, len(strings) + len(own.dictionary)).to_numpy()
    parts = [pl.Series("name", part, dtype=pl.String) for part in (strings["value"], own.dictionary, [""])]
    texts = pl.concat(parts)
    used = np.flatnonzero(np.bincount(code, minlength=len(texts)))
    better = _shown(texts.gather(used))
    names = better.unique(maintain_order=True)
    row_of = np.zeros(len(texts), np.int64)
    row_of[used] = np.arange(used.size)
    if len(names) < used.size:
        at = pl.DataFrame([better]).join(
            names.to_frame().with_row_index("at"), on="name", maintain_order="left"
        )
        row_of[used] = at["at"].to_numpy()
    return names, row_of[code]


def _shown(names: pl.Series) -> pl.Series:
    """Names fit to be shown; only those that are long or hold anything but plain ASCII are not so already."""
    odd = ((names.str.len_chars() > LONGEST_NAME) | names.str.contains("[^ -~]")).arg_true()
    return names.scatter(odd, [shown(name) for name in names.gather(odd)]) if len(odd) else names


def _json(rows: pa.Table, strings: pa.Table) -> pl.Series:
    """Payloads as JSON, by number or in the row itself."""
    own = pl.Series("json", rows["jsonText"], dtype=pl.String)
    if rows["jsonTextId"].null_count == rows.num_rows:
        return own
    by_number = strings["value"].combine_chunks().take(rows_of(strings["id"], rows["jsonTextId"]))
    found = pl.Series("json", by_number, dtype=pl.String)
    return found.zip_with(found.is_not_null(), own)
