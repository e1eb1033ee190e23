"""Writes tiny exports in the Nsight Systems SQLite schema, so that a test can say exactly what happened.

`Export` writes one file by hand; `synthetic` writes a whole job whose collectives keep their contract
(nobody leaves before the last arrives), and `base4` and `flat8` are two jobs of it with known answers.
Nothing here imports rankdiff: the files are a second opinion on the schema, not an echo of the reader.
"""

from .export import EPOCH, Export, linear_clock
from .job import Instance, Job, Phase, Scenario, base4, flat8, synthetic, tp_dp
from .payloads import decode_payload, encode_payload
from .process import Call, Process
from .tables import columns

__all__ = [
    "EPOCH",
    "Call",
    "Export",
    "Instance",
    "Job",
    "Phase",
    "Process",
    "Scenario",
    "base4",
    "columns",
    "decode_payload",
    "encode_payload",
    "flat8",
    "linear_clock",
    "synthetic",
    "tp_dp",
]
