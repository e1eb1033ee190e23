"""The tables of `rankdiff.job_tables` out of a comparison, whole columns at a time.

What report.json says as well is taken from it, so that no number is defined twice. The rest comes out of the arrays
(`rankdiff.array_frames`) and the digests, when somebody asks for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from rankdiff.array_frames import delays, instances, waits
from rankdiff.comparison import Comparison
from rankdiff.job_tables import (
    COMMUNICATORS,
    DATABASE_VERSION,
    FINDINGS,
    JOB,
    JOB_TABLES,
    NODES,
    NOTES,
    PROVENANCE,
    RANK_TABLES,
    RANKS,
    STEPS,
)
from rankdiff.notes import Note
from rankdiff.render.json import to_dict
from rankdiff.schema import DIGEST_VERSION, check
from rankdiff.windows import common_time, origin_utc_ns

Report = dict[str, Any]

_NO_GAPS = np.iinfo(np.int64).max  # report.json lists longest gaps; no table needs them


@dataclass(frozen=True)
class Frames:
    """Makes the tables of one comparison.

    Attributes
    ----------
    comparison : Comparison
    report : dict
        report.json of it.
    command : str or None
        How to make it again.
    """

    comparison: Comparison
    report: Report
    command: str | None = None

    @classmethod
    def of(cls, c: Comparison, notes: Sequence[Note] = (), command: str | None = None) -> Frames:
        """Frames of a comparison with the warnings of reading its reports."""
        return cls(c, to_dict(c, notes, _NO_GAPS), command)

    def parts(self, name: str) -> Iterator[pl.DataFrame]:
        """A table of JOB_TABLES in parts, in order."""
        yield from waits(self.comparison) if name == "waits" else [_SMALL[name](self)]

    def table(self, name: str) -> pl.DataFrame:
        """A table of JOB_TABLES."""
        return pl.concat([pl.DataFrame(schema=JOB_TABLES[name]), *self.parts(name)])


def rank_table(c: Comparison, name: str) -> pl.DataFrame:
    """A digest table of all ranks, of RANK_TABLES."""
    return pl.concat([pl.DataFrame(schema=RANK_TABLES[name]), *(part for _, part in rank_tables(c, [name]))])


def rank_tables(
    c: Comparison, names: Iterable[str] = tuple(RANK_TABLES)
) -> Iterator[tuple[str, pl.DataFrame]]:
    """Digest tables rank by rank, so that one rank's are in memory at a time, with their names."""
    names = tuple(names)
    for i, d in zip(c.identities, c.digests, strict=True):
        for name in names:
            table: pl.DataFrame = getattr(d, name)
            if name == "collectives":
                table = table.with_row_index("collective").with_columns(pl.col("collective").cast(pl.Int64))
            frame = table.select(pl.lit(i.rank, pl.Int64).alias("rank"), pl.all())
            yield name, check(frame, RANK_TABLES[name], name)


def _frame(rows: Iterable[Mapping[str, Any]], schema: pl.Schema) -> pl.DataFrame:
    """Rows that may know more than the table has."""
    known = list(rows)
    return pl.DataFrame({name: [row[name] for row in known] for name in schema.names()}, schema=schema)


def _provenance(f: Frames) -> pl.DataFrame:
    row = {
        "database_schema": DATABASE_VERSION,
        "report_schema": f.report["schema"],
        "digest_schema": DIGEST_VERSION,
        "rankdiff_version": f.report["rankdiff_version"],
        "command": f.command,
    }
    return _frame([row], PROVENANCE)


def _job(f: Frames) -> pl.DataFrame:
    clock, bottleneck = f.report["clock"], f.report["bottleneck"]
    row = {
        **f.report["verdict"],
        **f.report["job"],
        "bottleneck": bottleneck["kind"],
        "bottleneck_share_of_step": bottleneck["share_of_step"],
        "origin_utc_ns": origin_utc_ns(f.comparison),
        "clock_method": clock["method"],
        "clock_reference": clock["reference"],
        "clock_uncertainty_ns": clock["uncertainty_ns"],
    }
    return _frame([row], JOB)


def _findings(f: Frames) -> pl.DataFrame:
    rows = []
    for n, found in enumerate(f.report["findings"], 1):
        twin, what_if = found["twin"] or {}, found["what_if"] or {}
        detail = found["cause_detail"]
        rows.append(
            {
                **found,
                "finding": n,
                "cause_detail": None if detail is None else json.dumps(detail, ensure_ascii=False),
                "first_step": _number(found["first_step"]),
                "carried_by_step": _number(found["carried_by_step"]),
                "twin_delay_ns_per_step": twin.get("delay_ns_per_step"),
                "twin_p_value": twin.get("p_value"),
                "what_if_step_ns": what_if.get("step_ns"),
                "what_if_gain_ns_per_step": what_if.get("gain_ns_per_step"),
                "what_if_speedup": what_if.get("speedup"),
            }
        )
    return _frame(rows, FINDINGS)


def _ranks(f: Frames) -> pl.DataFrame:
    c, rows = f.comparison, []
    for d, found in zip(c.digests, f.report["ranks"], strict=True):
        middle = np.array([(d.info.window_start_ns + d.info.window_end_ns) // 2], np.int64)
        to_job = common_time(c, found["rank"])
        start, end = to_job(np.array([d.info.window_start_ns, d.info.window_end_ns], np.int64))
        bottleneck = found["bottleneck"] or {"kind": None, "share_of_step": None}
        rows.append(
            {
                **found,
                "gpu_name": d.info.gpu_name,
                "session_start_utc_ns": d.info.session_start_utc_ns,
                "job_clock_shift_ns": int((to_job(middle) - middle)[0]),
                "window_start_ns": int(start),
                "window_end_ns": int(end),
                "bottleneck": bottleneck["kind"],
                "bottleneck_share_of_step": bottleneck["share_of_step"],
            }
        )
    return _frame(rows, RANKS)


def _nodes(f: Frames) -> pl.DataFrame:
    fitted = f.comparison.clock.observations > 0
    clocks = {n["node"]: n for n in f.report["clock"]["nodes"]} if fitted else {}
    none = dict.fromkeys(("offset_ns", "drift_ppm", "residual_ns"))
    return _frame(({**node, **none, **clocks.get(node["node"], {})} for node in f.report["nodes"]), NODES)


def _communicators(f: Frames) -> pl.DataFrame:
    return _frame(({**m, "communicator": m["id"]} for m in f.report["communicators"]), COMMUNICATORS)


def _notes(f: Frames) -> pl.DataFrame:
    return _frame(f.report["warnings"], NOTES)


def _steps(f: Frames) -> pl.DataFrame:
    rows = iter(f.report["steps"])
    out = []
    for n, island in enumerate(f.comparison.islands):
        ends = island.steps.last_end.tolist()
        for start, end in zip([None, *ends[:-1]], ends, strict=True):
            found = next(rows)
            place = {"island": n, "step": _number(found["step"]), "start_ns": start, "end_ns": end}
            out.append({**found, **place})
    return _frame(out, STEPS)


def _number(label: str | None) -> int | None:
    return None if label is None else int(label)


_SMALL: dict[str, Callable[[Frames], pl.DataFrame]] = {
    "provenance": _provenance,
    "job": _job,
    "findings": _findings,
    "ranks": _ranks,
    "nodes": _nodes,
    "steps": _steps,
    "delays": lambda f: delays(f.comparison),
    "communicators": _communicators,
    "instances": lambda f: instances(f.comparison),
    "notes": _notes,
}
