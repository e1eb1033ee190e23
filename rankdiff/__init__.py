"""rankdiff: which rank or node made a multi-GPU job wait, what it cost, and why.

The public names are those of `__all__`; ``docs/library.md`` shows them at work. Importing this package loads nothing
but itself: the libraries behind a name come with its first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rankdiff.comparison import Verdict
    from rankdiff.diff_result import Difference
    from rankdiff.digest import Digest
    from rankdiff.errors import IdentityError, RankdiffError, ReportError
    from rankdiff.findings import Finding
    from rankdiff.library import compare, diff, load_digest
    from rankdiff.notes import Note
    from rankdiff.result import Comparison

__version__ = "0.1.0"

__all__ = [
    "Comparison",
    "Difference",
    "Digest",
    "Finding",
    "IdentityError",
    "Note",
    "RankdiffError",
    "ReportError",
    "Verdict",
    "__version__",
    "compare",
    "diff",
    "load_digest",
]

_HOME = {
    "Comparison": "result",
    "Difference": "diff_result",
    "Digest": "digest",
    "Finding": "findings",
    "IdentityError": "errors",
    "Note": "notes",
    "RankdiffError": "errors",
    "ReportError": "errors",
    "Verdict": "comparison",
    "compare": "library",
    "diff": "library",
    "load_digest": "library",
}

# Hidden from type checkers, which would take every misspelt name for one that it gives.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Load a public name."""
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """All names, those not loaded yet too."""
    return sorted({*globals(), *__all__})
