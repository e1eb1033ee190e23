"""Synthetic jobs in the Nsight Systems SQLite schema: who is late and why is known, because it was planted.

`simulate` plays a training job with faults and writes its reports and the truth about it; `write` and
`synthetic` play any `Scenario`, and `Export` writes one file event by event. In every play collectives keep
their contract: nobody leaves before the last arrives.

Shares no code with the analysis: the files are a second opinion on the schema, not an echo of the reader.
"""

from .clocks import linear_clock
from .examples import base4, flat8, synthetic, tp_dp
from .export import EPOCH, Export
from .faults import KINDS, Fault, OptionError, parse_fault
from .folder import Simulated, simulate
from .payloads import decode_payload, encode_payload
from .process import Call, Process
from .reports import write
from .scenario import Instance, Job, Phase, Scenario
from .settings import (
    NodeClock,
    Settings,
    Window,
    parse_clock,
    parse_jitter,
    parse_stage_work,
    parse_window,
)
from .tables import columns

__all__ = [
    "EPOCH",
    "KINDS",
    "Call",
    "Export",
    "Fault",
    "Instance",
    "Job",
    "NodeClock",
    "OptionError",
    "Phase",
    "Process",
    "Scenario",
    "Settings",
    "Simulated",
    "Window",
    "base4",
    "columns",
    "decode_payload",
    "encode_payload",
    "flat8",
    "linear_clock",
    "parse_clock",
    "parse_fault",
    "parse_jitter",
    "parse_stage_work",
    "parse_window",
    "simulate",
    "synthetic",
    "tp_dp",
    "write",
]
