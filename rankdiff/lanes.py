"""What a picture shows of one rank in a window: its lanes, on the common clock."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from rankdiff.comparison import Comparison
from rankdiff.encounters import Encounters
from rankdiff.kernels.intervals import I64, union
from rankdiff.kernels.partition import flatten
from rankdiff.placing import Placing
from rankdiff.reports.identity import Identity
from rankdiff.schema import IDLE_CLASSES
from rankdiff.spans import RankSpans
from rankdiff.tracks import collectives_of
from rankdiff.windows import Window, common_time


@dataclass(frozen=True)
class Lanes:
    """What is drawn of one rank; times in ns since the window's start."""

    identity: Identity
    compute: tuple[I64, I64]
    idle: dict[str, tuple[I64, I64]]  # by class
    nccl: pl.DataFrame  # start_ns, end_ns, name, wait_end_ns, last_rank, matched
    copies: tuple[I64, I64]
    phases: pl.DataFrame  # start_ns, end_ns, name, loads_data
    calls: pl.DataFrame | None  # start_ns, end_ns, name, class; None: OS calls were not captured

    @property
    def waits(self) -> tuple[I64, I64]:
        """Union of its waits."""
        rows = self.nccl.filter(pl.col("wait_end_ns") > pl.col("start_ns"))
        return union(rows["start_ns"].to_numpy(), rows["wait_end_ns"].to_numpy())

    def summed(self) -> dict[str, int]:
        """Time of each kind in the window, in ns."""
        parts = {
            "compute": self.compute,
            "nccl": united(self.nccl),
            "wait": self.waits,
            "copies": self.copies,
            **self.idle,
        }
        return {name: int((end - start).sum()) for name, (start, end) in parts.items()}


def lanes_of(c: Comparison, window: Window, i: Identity, spans: RankSpans, meet: Encounters) -> Lanes:
    """Put the events of a rank on the common clock."""
    place = Placing(common_time(c, i.rank), window)
    work = place.placed(spans.work.select("start_ns", "end_ns", "kind"))
    nccl = place.placed(collectives_of(c, i, meet)).with_columns(
        matched=pl.col("instance").is_not_null(),
        # Null where nobody was waited for.
        wait_end_ns=pl.when(pl.col("wait_ns") > 0).then(
            pl.min_horizontal(pl.col("last_ns") - window.start_ns, "end_ns")
        ),
    )
    idle = place.placed(spans.idle)
    calls = spans.calls.filter(pl.col("thread") == spans.thread)
    return Lanes(
        identity=i,
        compute=united(work.filter(pl.col("kind").is_in(["kernel", "graph"]))),
        idle={name: united(idle.filter(pl.col("class") == name)) for name in IDLE_CLASSES},
        nccl=nccl.select("start_ns", "end_ns", "name", "wait_end_ns", "last_rank", "matched"),
        copies=united(work.filter(pl.col("kind").is_in(["memcpy", "memset"]))),
        phases=place.placed(spans.phases),
        calls=_innermost(place.placed(calls)) if spans.has_os_calls else None,
    )


def _innermost(calls: pl.DataFrame) -> pl.DataFrame:
    start, end, item = flatten(calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy())
    return calls.select("name", "class")[item].with_columns(start_ns=pl.Series(start), end_ns=pl.Series(end))


def united(rows: pl.DataFrame) -> tuple[I64, I64]:
    """Union of the rows of a table."""
    return union(rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy())
