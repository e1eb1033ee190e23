"""The one place that says how kernels are compiled."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import numba

F = TypeVar("F", bound=Callable[..., Any])


# What unpickling something that is not what it should be can raise.
_DAMAGE = (
    pickle.PickleError,
    EOFError,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    ImportError,
    MemoryError,
)


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
        except (OSError, *_DAMAGE):
            return None

    def save_overload(self, signature: Any, data: Any) -> None:
        with suppress(OSError, *_DAMAGE):
            try:
                self._cache.save_overload(signature, data)
            except _DAMAGE:
                self._cache.flush()  # a damaged index stays in the way until it is emptied
                self._cache.save_overload(signature, data)


def jit(function: F) -> F:
    """Compile `function` in nopython mode, without the GIL, cached on disk where that is possible.

    No bounds are checked in production (``NUMBA_BOUNDSCHECK=1`` in the tests checks them), and integers wrap.
    """
    return _compiled(function)


def leaf(function: F) -> F:
    """As `jit`, for a function that allocates nothing and calls nothing that does.

    The arrays it is given are then not counted when they are passed on: where a kernel keeps its state in dozens of
    arrays, counting them takes most of the time.
    """
    return _compiled(function, _nrt=False)


def _compiled(function: F, **options: Any) -> F:
    compiled: Any
    njit: Any = numba.njit  # its stubs do not know `_nrt`
    try:
        compiled = njit(nogil=True, cache=True, error_model="numpy", **options)(function)
    except RuntimeError:  # "no locator available": read-only package and no usable home directory
        compiled = njit(nogil=True, error_model="numpy", **options)(function)
    cache = getattr(compiled, "_cache", None)
    if cache is not None and hasattr(cache, "load_overload"):
        compiled._cache = _ForgivingCache(cache)
    return compiled  # type: ignore[no-any-return]
