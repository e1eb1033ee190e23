"""A threshold as people write it; light, because the command line reads it before anything is loaded."""

from __future__ import annotations

import re

_FORM = re.compile(r"regression:(\d{1,4}(?:\.\d{1,4})?)%")


def parse_regression(text: str) -> float:
    """Read ``regression:5%`` as 0.05.

    Raises
    ------
    ValueError
        It is something else.
    """
    found = _FORM.fullmatch(text.strip())
    if found is None or float(found[1]) <= 0:
        raise ValueError(f"{text!r} is not a threshold like regression:5%")
    return float(found[1]) / 100.0
