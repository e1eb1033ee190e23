"""The one place that says how kernels are compiled."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, TypeVar

import numba

F = TypeVar("F", bound=Callable[..., Any])


class _ForgivingCache:
    """numba's on-disk cache, where a damaged or unwritable entry means "compile again".

    numba lets the error of a truncated index or of a full disk through. Job starts on many nodes share one
    home directory, so both happen, and neither is a reason to stop.
    """

    def __init__(self, cache: Any) -> None:
        self._cache = cache

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        try:
            return self._cache.load_overload(signature, target_context)
        except (
            OSError,
            EOFError,
            pickle.UnpicklingError,
            ValueError,
            TypeError,
            KeyError,
            IndexError,
            AttributeError,
            ImportError,
            MemoryError,
        ):
            return None

    def save_overload(self, signature: Any, data: Any) -> None:
        try:
            self._cache.save_overload(signature, data)
        except (
            OSError,
            EOFError,
            pickle.PickleError,
            ValueError,
            TypeError,
            AttributeError,
            ImportError,
            MemoryError,
        ):
            return


def jit(function: F) -> F:
    """Compile `function` in nopython mode, without the GIL, cached on disk where that is possible.

    No bounds are checked in production (``NUMBA_BOUNDSCHECK=1`` in the tests checks them), and integers wrap.
    """
    compiled: Any
    try:
        compiled = numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # "no locator available": read-only package and no usable home directory
        compiled = numba.njit(nogil=True)(function)
    cache = getattr(compiled, "_cache", None)
    if cache is not None and hasattr(cache, "load_overload"):
        compiled._cache = _ForgivingCache(cache)
    return compiled  # type: ignore[no-any-return]
