"""Compiling kernels where the cache is missing, damaged or full."""

from __future__ import annotations

import os
import subprocess
import sys

import numba
import numpy as np
import pytest

from rankdiff.kernels._jit import _ForgivingCache, jit

jitted = pytest.mark.skipif(bool(os.environ.get("NUMBA_DISABLE_JIT")), reason="nothing is compiled")

PROGRAM = (
    "from rankdiff.kernels.intervals import union; "
    "import sys; sys.stdout.write(str(union([5, 0], [9, 3])[1].tolist()))"
)


def add_one(values):
    return values + 1


def run(cache, root):
    env = {**os.environ, "NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": str(root), "PYTHONWARNINGS": "error"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@jitted
def test_no_cache_directory_at_all(monkeypatch):
    from numba.core import caching

    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])
    with pytest.raises(RuntimeError, match="no locator available"):
        numba.njit(cache=True)(add_one)
    assert jit(add_one)(np.arange(2)).tolist() == [1, 2]


@jitted
@pytest.mark.parametrize(
    "damage", [b"", b"\x80\x04garbage", bytes(range(64))], ids=["empty", "pickle", "bytes"]
)
def test_a_damaged_cache_is_compiled_again(tmp_path, repository, damage):
    assert run(tmp_path, repository) == "[3, 9]"
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    for path in files:
        path.write_bytes(damage)
    assert run(tmp_path, repository) == "[3, 9]"
    # It has healed: the damaged files are replaced.
    assert not [path for path in tmp_path.rglob("*.nbi") if path.read_bytes() == damage]


def test_a_full_disk_is_no_reason_to_stop():
    class Full:
        cache_path = "somewhere"

        def load_overload(self, signature, target):
            raise EOFError

        def save_overload(self, signature, data):
            raise OSError(28, "No space left on device")

    cache = _ForgivingCache(Full())
    assert cache.load_overload(None, None) is None
    assert cache.save_overload(None, None) is None
    assert cache.cache_path == "somewhere"
