"""Whom a late rank of a large job is compared with for its cause: enough of the others, not all of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import polars as pl

from benchmarks.plays import Play, perform
from rankdiff import excess
from rankdiff.comparison import compare_digests
from rankdiff.digest import Digest
from rankdiff.excess import Scene, enough_peers
from rankdiff.findings import is_loud
from rankdiff.schema import LEAD_UP

LATE = 101
EXTRA_NS = 12e6


def with_lead_up(digest: Digest, rank: int) -> Digest:
    """The digest with what its rank did before each collective: work, and files where it is late."""
    work = digest.work
    spent = (work["end_ns"] - work["start_ns"]).to_numpy()
    rows = np.arange(digest.collectives.height)
    extra = np.full(rows.size, EXTRA_NS / 2 if rank == LATE else 0.0).astype(np.int64)
    parts = [("data_load", "read", extra), ("gpu_work", None, spent - np.minimum(extra, spent))]
    table = pl.concat(
        pl.DataFrame(
            {"collective": rows, "class": kind, "range": None, "call": call, "ns": ns},
            schema=LEAD_UP,
        )
        for kind, call, ns in parts
    )
    tables = dict.fromkeys(("CUPTI_ACTIVITY_KIND_RUNTIME", "OSRT_API", "NVTX_EVENTS"), 1)
    info = replace(digest.info, tables={**digest.info.tables, **tables}, data_ranges=1)
    return replace(digest, info=info, lead_up=table.filter(pl.col("ns") > 0).sort("collective", "class"))


def test_the_cause_is_found_with_a_part_of_the_peers(monkeypatch):
    play = Play(ranks=144, per_node=8, steps=24, per_step=2, jitter_share=0.004, late={LATE: EXTRA_NS})
    played = perform(play)
    digests = [with_lead_up(d, i.rank) for d, i in zip(played.digests, played.identities, strict=True)]
    read: Counter[int] = Counter()
    dense = excess.dense
    monkeypatch.setattr(excess, "dense", lambda job, r: read.update([r]) or dense(job, r))
    (finding,) = [f for f in compare_digests(digests, played.identities, ()).verdict.findings if is_loud(f)]
    assert (finding.ranks, finding.cause) == ((LATE,), "data_load")
    assert len(read) == 65
    assert LATE in read


def test_enough_peers_of_every_communicator():
    def scene(*members: range) -> Scene:
        timed = [type("T", (), {"comm": type("C", (), {"members": np.array(m)})})() for m in members]
        return Scene(tuple(range(1024)), tuple(timed), np.arange(1), np.zeros((1024, 1)))  # type: ignore[arg-type]

    pair, across = range(40, 48), range(3, 1024, 8)
    peers = [r for r in range(1024) if r != 43]
    chosen = enough_peers(scene(pair, across), [43], peers)
    assert set(pair) - {43} <= set(chosen)
    assert len(set(across) & set(chosen)) >= 64
    assert len(chosen) <= 7 + 64 + 64
    assert list(chosen) == sorted(chosen)
    # Every part of the job is there.
    assert max(np.diff([0, *chosen, 1023])) <= 16
    few = list(range(64))
    assert enough_peers(scene(range(65)), [64], few) == tuple(few)
