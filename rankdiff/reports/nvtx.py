"""NVTX ranges and domains of an export."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rankdiff.reports.filters import Filter
from rankdiff.reports.reader import BLOB, INTEGER, TEXT
from rankdiff.reports.tables import ReportTables, process_ids
from rankdiff.untrusted import LONGEST_NAME, shown

NVTX = "NVTX_EVENTS"
_RANGES = (59, 60, 70, 71)  # push/pop, start/end, and the same imported from text
_DOMAIN = 75


def add_nvtx(tables: ReportTables) -> None:
    """Make the tables ``nvtx`` and ``domain``.

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
    rows = rows.filter(tables.usable(NVTX, rows, "globalTid", open_ended=True))
    ids = np.concatenate([rows[name].drop_null().to_numpy() for name in ("textId", "jsonTextId")])
    strings = tables.reader.strings(ids, whole=True)
    no_environment = pc.invert(pc.match_substring(strings["value"], "\0"))
    tables.create("nvtx_string", strings.filter(no_environment))
    raw = {
        "pid": process_ids(rows["globalTid"]),
        "thread": rows["globalTid"],
        "start_ns": tables.session(rows["start"]),
        "end_ns": tables.session(rows["end"]),
        "type": rows["eventType"],
        "domain": pc.fill_null(rows["domainId"], pa.scalar(0, pa.int64())),
        "text": rows["text"],
        "text_id": rows["textId"],
        "json": rows["jsonText"],
        "json_id": rows["jsonTextId"],
        "payload": rows["binaryData"],
    }
    tables.create("nvtx_row", pa.table(raw))
    tables.db.execute(
        "CREATE TABLE nvtx AS SELECT r.pid, r.thread, r.start_ns, r.end_ns, r.type, r.domain, "
        "coalesce(s.value, r.text, '') AS name, r.payload, coalesce(j.value, r.json) AS json FROM nvtx_row r "
        "LEFT JOIN nvtx_string s ON s.id = r.text_id LEFT JOIN nvtx_string j ON j.id = r.json_id "
        "WHERE r.start_ns IS NOT NULL"
    )
    tables.db.execute(
        f"CREATE TABLE domain AS SELECT DISTINCT pid, domain, name FROM nvtx WHERE type = {_DOMAIN}"
    )
    tables.db.execute(f"DELETE FROM nvtx WHERE type = {_DOMAIN}")
    tables.db.execute("DROP TABLE nvtx_row")
    _show_names(tables)


def _show_names(tables: ReportTables) -> None:
    """Make names fit to be shown: the few that are long or hold anything but plain ASCII."""
    odd = tables.frame(
        "SELECT DISTINCT name FROM (SELECT name FROM nvtx UNION ALL SELECT name FROM domain) "
        "WHERE length(name) > ? OR regexp_matches(name, '[^ -~]')",
        [LONGEST_NAME],
    )["name"].to_list()
    better = [(name, shown(name)) for name in odd if shown(name) != name]
    if not better:
        return
    old, new = (pa.array(texts, TEXT) for texts in zip(*better, strict=True))
    tables.create("renamed", pa.table({"old": old, "new": new}))
    for table in ("nvtx", "domain"):
        tables.db.execute(
            f"UPDATE {table} SET name = renamed.new FROM renamed WHERE {table}.name = renamed.old"
        )
    tables.db.execute("DROP TABLE renamed")
