"""The tables of a compared job: names, types, units, and what null means.

They are what `rankdiff.Comparison` hands out as polars frames and what `compare --save-db` writes, so that a column
means the same in Python, in SQL and, where it has a key of that name, in report.json.

Unless a comment says otherwise, times are int64 nanoseconds on the *job clock*: since the earliest session start of
the job, on the clock fitted to all nodes, so that ``utc = time + origin_utc_ns`` of the table `job`. Digest tables
(`rankdiff.schema`) are in session times of their rank: ``job clock = session time + job_clock_shift_ns`` of the table
`ranks`, but for the drift of the rank's clock within its capture.

`step` is the number of a step in the job, as reports show it; in digest tables it is the ordinal of the rank's own
step range.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from rankdiff.makeup import PARTS
from rankdiff.schema import DIGEST_TABLES, IDLE_CLASSES

DATABASE_VERSION = "rankdiff.database/1"

# Kinds of columns that are objects, where the others are classes: no type has both.
_NUMBERS: Any = pl.List(pl.Int64)
_NS_INTERVAL: Any = pl.List(pl.Int64)
_TEXTS: Any = pl.List(pl.String)
_BY_CAUSE: Any = pl.Struct(dict.fromkeys(IDLE_CLASSES, pl.Int64))
_MAKE_UP: Any = pl.Struct(dict.fromkeys(PARTS, pl.Int64))

# What made the tables: one row.
PROVENANCE = pl.Schema(
    {
        "database_schema": pl.String,  # version of these tables; another major number is another layout
        "report_schema": pl.String,  # version of report.json, whose keys the columns share
        "digest_schema": pl.String,  # version of the digest tables
        "rankdiff_version": pl.String,
        "command": pl.String,  # how to make it again, without folders; null: made by a program
    }
)

# The job and the answer for it: one row.
JOB = pl.Schema(
    {
        "status": pl.String,  # straggler, rotating, balanced or not_assessed
        "reason": pl.String,  # code of why nothing was assessed; null: it was
        "summary": pl.String,  # the answer in one sentence
        "wait_ns_per_step": pl.Int64,  # what all ranks together cost; null: not assessed
        "wait_share_of_step": pl.Float64,  # null as above
        "wait_ci95_ns_per_step": _NS_INTERVAL,  # low and high end; null as above
        "smallest_findable_delay_ns_per_step": pl.Int64,  # a smaller delay is not reported; null: nothing judged
        "margin_ns_per_step": pl.Int64,  # a rank this late would have been seen; null: not balanced, or too few steps
        "node_margin_ns_per_step": pl.Int64,  # the same of a node
        "bottleneck": pl.String,  # what takes most of the median rank's step; null: no steps to divide
        "bottleneck_share_of_step": pl.Float64,  # null: as above, or of kind mixed or unknown
        "ranks": pl.Int64,  # captured
        "nodes": pl.Int64,
        "missing_ranks": _NUMBERS,  # ranks of the job without a usable report
        "steps": pl.Int64,  # judged
        "step_source": pl.String,  # nvtx:<name>, period or collective; null: nothing was matched
        "step_ns_median": pl.Int64,  # null: no step has a length
        "window_ns": pl.Int64,  # from the end of the first step to that of the last; null: nothing was matched
        "matched_collectives": pl.Int64,  # rows of `instances`
        "unmatched_collectives": pl.Int64,  # kernels of N x N operations that belong to no instance
        "origin_utc_ns": pl.Int64,  # UTC of time 0 of the job clock; null: no report knows when its session started
        "clock_method": pl.String,
        "clock_reference": pl.String,  # node whose clock is the job's; null: nothing to fit on
        "clock_uncertainty_ns": pl.Int64,  # null as above
    }
)

# One row per captured rank, sorted by rank. Sums are over the judged steps unless they are of the whole capture.
RANKS = pl.Schema(
    {
        "rank": pl.Int64,
        "node": pl.String,
        "rank_source": pl.String,  # where the number was read
        "node_source": pl.String,  # where the name was read
        "report": pl.String,  # file name without folders
        "report_bytes": pl.Int64,
        "session_uuid": pl.String,  # null: the export does not tell
        "schema_version": pl.String,  # of the export; null as above
        "pid": pl.Int64,
        "device": pl.Int64,  # as the process numbers it
        "gpu_name": pl.String,  # null: the export does not tell
        "gpu_uuid": pl.String,  # null as above
        "gpu_index": pl.Int64,  # as the node numbers it; null as above
        "session_start_utc_ns": pl.Int64,  # UTC of session time 0; null as above
        "job_clock_shift_ns": pl.Int64,  # session time to job clock, in the middle of the capture
        "window_start_ns": pl.Int64,  # first GPU activity
        "window_end_ns": pl.Int64,  # last GPU activity
        "collectives": pl.Int64,  # matched, in all steps
        "nccl_kernels": pl.Int64,  # of the whole capture
        "nccl_ns": pl.Int64,  # the same, summed durations
        "wait_ns": pl.Int64,  # waited for others; null: nothing was matched
        "imposed_wait_ns": pl.Int64,  # waited by the others when it came last; null as above
        "delay_ns": pl.Int64,  # what it cost the job; null: not assessed
        "delay_ci95_ns": _NS_INTERVAL,  # of delay_ns, low and high end; null as above
        "delay_share": pl.Float64,  # delay_ns by the time of the judged steps; null as above
        "lateness_ns_median": pl.Int64,  # of its largest lateness in each step; null: nothing was matched
        "last_count": pl.Int64,  # collectives at which it came last; null as above
        "span_ns": pl.Int64,  # first to last GPU activity
        "busy_ns": pl.Int64,  # of the whole capture
        "idle_ns": pl.Int64,  # of the whole capture
        "idle_data_load_ns": pl.Int64,  # idle time under data-loading ranges; null: there are none
        "idle_osrt_ns": pl.Int64,  # idle time under OS calls; null: not captured
        "idle_by_cause_ns": _BY_CAUSE,  # idle_ns by class; null: not captured
        "end_skew_ns": pl.Int64,  # constant difference of its ends, taken out as its device's clock; null: not fitted
        "make_up_ns": _MAKE_UP,  # parts of its steps; null: nothing was matched
        "bottleneck": pl.String,  # null: no steps to divide
        "bottleneck_share_of_step": pl.Float64,  # null: as above, or of kind mixed or unknown
    }
)

# One row per node, in the order of their lowest rank.
NODES = pl.Schema(
    {
        "node": pl.String,
        "ranks": _NUMBERS,
        "delay_ns": pl.Int64,  # summed over its ranks; null: one of them was not assessed
        "delay_ci95_ns": _NS_INTERVAL,  # of delay_ns, low and high end; null as above
        "offset_ns": pl.Int64,  # session clock less job clock; null: its ranks have clocks of their own, or none
        "drift_ppm": pl.Float64,  # rate of its clock less that of the job's; null as above
        "residual_ns": pl.Int64,  # what the ends differ by after correction; null: not observed
    }
)

# One row per communicator with matched instances.
COMMUNICATORS = pl.Schema(
    {
        "communicator": pl.String,  # hash of the payloads, else a name given
        "ranks": _NUMBERS,  # captured members
        "source": pl.String,  # payload or inferred
        "matched": pl.Int64,  # instances
        "trimmed": pl.Int64,  # kernels before or after the window that all members share
        "lost": pl.Int64,  # kernels inside it that not all members have
        "first_divergence": pl.Int64,  # `sequence` at which the members' operations first part; null: nowhere
        "diverging_ranks": _NUMBERS,  # those that part from the others there
    }
)

# One row per step and set of ranks that meet (`island`), in order. A step lasts from the last end of the step before
# to its own.
STEPS = pl.Schema(
    {
        "island": pl.Int64,  # sets of ranks that meet in no collective are judged by themselves; from 0
        "step": pl.Int64,
        "start_ns": pl.Int64,  # null: the first step, whose start is not known
        "end_ns": pl.Int64,  # last end of its collectives
        "step_ns": pl.Int64,  # null as above
        "delay_ns": pl.Int64,  # what all ranks together cost
        "top_rank": pl.Int64,  # who cost most; null: nobody cost anything
        "top_share": pl.Float64,  # of delay_ns; null as above
        "judged": pl.Boolean,  # false: left out of the verdict and of all sums
    }
)

# One row per step and rank: the share of the step's delay that is the rank's.
DELAYS = pl.Schema(
    {
        "island": pl.Int64,
        "step": pl.Int64,
        "rank": pl.Int64,
        "delay_ns": pl.Float64,
        "judged": pl.Boolean,  # as in STEPS
    }
)

# One row per matched instance of an N x N collective, by communicator and in its order.
INSTANCES = pl.Schema(
    {
        "instance": pl.Int64,  # number in the job, from 0
        "communicator": pl.String,
        "sequence": pl.Int64,  # number in the communicator, from 0; counts matched instances only
        "step": pl.Int64,
        "op": pl.String,
        "bytes": pl.Int64,  # message size as the lowest rank tells that knows it; null: no payloads
        "ranks": pl.Int64,  # captured members
        "first_start_ns": pl.Int64,  # first arrival
        "last_start_ns": pl.Int64,  # last arrival
        "last_rank": pl.Int64,  # who arrived last; the lowest of equals
        "end_ns": pl.Int64,  # median end
        "wait_ns": pl.Int64,  # summed over the members
        "transfer_ns": pl.Int64,  # median end less last arrival, not below 0
        "judged": pl.Boolean,  # as in STEPS
    }
)

# One row per matched instance and member, by instance, then rank.
WAITS = pl.Schema(
    {
        "instance": pl.Int64,
        "communicator": pl.String,
        "sequence": pl.Int64,
        "step": pl.Int64,
        "rank": pl.Int64,
        "op": pl.String,
        "bytes": pl.Int64,  # as in INSTANCES
        "start_ns": pl.Int64,  # arrival
        "end_ns": pl.Int64,
        "wait_ns": pl.Int64,  # from its arrival to the last one, at most its duration
        "lateness_ns": pl.Int64,  # its arrival less the median arrival; negative: early
        "transfer_ns": pl.Int64,  # of the instance
        "collective": pl.Int64,  # row of the rank's digest table `collectives`
    }
)

# One row per finding, the gravest first.
FINDINGS = pl.Schema(
    {
        "finding": pl.Int64,  # from 1
        "kind": pl.String,  # late_rank, late_node, rotating, startup, common_stall, slow_transfer
        "severity": pl.String,  # major, minor or note
        "rank": pl.Int64,  # null: it is not about one rank
        "node": pl.String,  # null: it is not about one node
        "ranks": _NUMBERS,  # all that it concerns
        "pattern": pl.String,  # persistent, intermittent, one_off, startup or rotating; null: does not apply
        "cause": pl.String,  # null: not analysed
        "cause_detail": pl.String,  # JSON: range, calls and numbers behind the cause; null as above
        "delay_ns_per_step": pl.Int64,  # null: does not apply
        "delay_share": pl.Float64,  # of the time of the judged steps; null as above
        "delay_ci95_ns": _NS_INTERVAL,  # of delay_ns_per_step, low and high end; null as above
        "p_value": pl.Float64,  # null: an event, which the test cannot see
        "steps_late": pl.Int64,  # null: does not apply
        "steps": pl.Int64,  # judged; null as above
        "first_step": pl.Int64,  # first late step; null as above
        "first_utc_ns": pl.Int64,  # its start in UTC; null: as above, or no report knows when its session started
        "period_steps": pl.Int64,  # from one late step to the next; null: not regular
        "carried_by_step": pl.Int64,  # step without which it would not stand; null: none
        "twin_delay_ns_per_step": pl.Int64,  # the same by durations, which need no clock; null: not reckoned
        "twin_p_value": pl.Float64,  # null as above
        "what_if_step_ns": pl.Int64,  # mean step if its ranks were typical; null: no prediction
        "what_if_gain_ns_per_step": pl.Int64,  # null as above
        "what_if_speedup": pl.Float64,  # null as above
        "what_if_refused": pl.String,  # why there is no prediction; null: there is one, or it does not apply
        "advice": pl.String,  # null: none
        "evidence": _TEXTS,
        "lowered_for": _TEXTS,  # codes of what lowered its severity
    }
)

# One row per warning, sorted by code.
NOTES = pl.Schema(
    {
        "code": pl.String,
        "message": pl.String,
        "ranks": _NUMBERS,  # empty: the job, or not known which
    }
)

# Tables of the job by name, in the order in which a database holds them.
JOB_TABLES = {
    "provenance": PROVENANCE,
    "job": JOB,
    "findings": FINDINGS,
    "ranks": RANKS,
    "nodes": NODES,
    "steps": STEPS,
    "delays": DELAYS,
    "communicators": COMMUNICATORS,
    "instances": INSTANCES,
    "waits": WAITS,
    "notes": NOTES,
}


def _of_ranks(name: str) -> pl.Schema:
    first = {"rank": pl.Int64()} | ({"collective": pl.Int64()} if name == "collectives" else {})
    return pl.Schema({**first, **DIGEST_TABLES[name]})


# Digest tables of all ranks by name: `rank` before the columns of `rankdiff.schema`, sorted by it. `collectives` has
# its row number as well (`collective`), which LEAD_UP and WAITS refer to.
RANK_TABLES = {name: _of_ranks(name) for name in DIGEST_TABLES}

# What `Comparison.timeline` gives: one row per piece of a lane that touches the window, cut at its ends; sorted by
# node, rank, lane and time.
TIMELINE = pl.Schema(
    {
        "rank": pl.Int64,
        "node": pl.String,
        "lane": pl.String,  # compute, copy, nccl, idle, range or call
        "start_ns": pl.Int64,
        "end_ns": pl.Int64,
        "name": pl.String,  # of an operation, a range or a call; null for the other lanes
        "class": pl.String,  # of idle time and calls (other: of no known class); data_load of a range; else null
        "wait_end_ns": pl.Int64,  # nccl: until when it waited for the last to arrive; null: nobody was waited for
        "last_rank": pl.Int64,  # nccl: who that was; null: not matched
    }
)
