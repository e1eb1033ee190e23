"""The clock of a GPU, where its metrics were sampled."""

from __future__ import annotations

import re

import polars as pl
import pyarrow as pa

from rankdiff.reports.reader import INTEGER, TEXT
from rankdiff.reports.tables import ReportTables

METRICS, NAMES = "GPU_METRICS", "TARGET_INFO_GPU_METRICS"

# The multiprocessors run on the GPC clock.
_CLOCK = re.compile(r"(?:SM|GPC) Clock\b", re.IGNORECASE)
_INDEX_MASK = 0xFF  # of a typeId: the GPU's index on the node
# The name says MHz, yet known exports hold Hz. No clock has 100 GHz, and none less than 100 kHz.
_LARGEST_MHZ = 100_000
_HZ = 1_000_000

SAMPLES = pl.Schema({"at_ns": pl.Int64, "sm_mhz": pl.Float64})


def sm_clock(tables: ReportTables, gpu: int | None) -> pl.DataFrame:
    """Samples of the SM clock of one GPU.

    Parameters
    ----------
    tables : ReportTables
    gpu : int or None
        Its index on the node; None: not known.

    Returns
    -------
    polars.DataFrame
        SAMPLES, sorted by time; empty where the clock was not sampled or the GPU is not known.
    """
    metrics = _clock_metrics(tables, gpu)
    if not metrics:
        return pl.DataFrame(schema=SAMPLES)
    wanted = " OR ".join('("typeId" = ? AND "metricId" = ?)' for _ in metrics)
    table = tables.optional(
        METRICS,
        {"timestamp": INTEGER, "value": INTEGER},
        required=("timestamp", "typeId", "metricId", "value"),
        # Some versions write large values as negative numbers; 0 is a GPU that sleeps.
        where=f'"value" > 0 AND ({wanted})',
        parameters=[number for metric in metrics for number in metric],
    )
    if table is None:
        return pl.DataFrame(schema=SAMPLES)
    rows = pl.DataFrame(pa.table({"at_ns": tables.session(table["timestamp"]), "value": table["value"]}))
    value = pl.col("value")
    mhz = pl.when(value > _LARGEST_MHZ).then(value / _HZ).otherwise(value.cast(pl.Float64))
    return rows.drop_nulls().select("at_ns", sm_mhz=mhz).sort("at_ns", "sm_mhz")


def _clock_metrics(tables: ReportTables, gpu: int | None) -> list[tuple[int, int]]:
    """Type and metric numbers of the clock of a GPU."""
    if gpu is None:
        return []
    table = tables.optional(
        NAMES,
        {"typeId": INTEGER, "metricId": INTEGER, "metricName": TEXT},
        required=("typeId", "metricId", "metricName"),
        where='"typeId" IS NOT NULL AND "metricId" IS NOT NULL',
    )
    if table is None:
        return []
    found = {
        (row["typeId"], row["metricId"])
        for row in table.to_pylist()
        if row["typeId"] & _INDEX_MASK == gpu and _CLOCK.search(row["metricName"] or "")
    }
    return sorted(found)
