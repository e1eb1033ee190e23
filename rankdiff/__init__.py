"""rankdiff: which rank or node made a multi-GPU job wait, what it cost, and why."""

__version__ = "0.1.0"
