"""Make mutants again and judge them: ``python -m tests.mutation BASE SEED [LAST_SEED] [--commands]``."""

from __future__ import annotations

import sys
import tempfile
import traceback
import warnings
from collections import Counter
from pathlib import Path

from tests.mutation.bases import base
from tests.mutation.mutants import judge, make


def main() -> int:
    """Judge the seeds; the status is the number of faults, at most 100."""
    words = [word for word in sys.argv[1:] if word != "--commands"]
    commands = "--commands" in sys.argv
    name, first = words[0], int(words[1])
    last = int(words[2]) if len(words) > 2 else first
    warnings.simplefilter("error")  # as in the test
    faults = 0
    effects: Counter[str] = Counter()
    for seed in range(first, last + 1):
        with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
            try:
                mutant = judge(base(name), seed, Path(folder), commands)
                effects[mutant.effect] += 1
                if first == last:
                    sys.stdout.write(f"{mutant.effect}: " + "; ".join(mutant.story) + "\n")
            except Exception:  # noqa: BLE001  # the faults are what is looked for
                faults += 1
                with tempfile.TemporaryDirectory(prefix="mutant-") as again:
                    mutant = make(base(name), seed, Path(again))
                sys.stdout.write(
                    f"--- {name} {seed} ({mutant.effect}): {'; '.join(mutant.story)}\n{traceback.format_exc()}\n"
                )
                sys.stdout.flush()
    sys.stdout.write(f"{name} {first}..{last}: {faults} faults, {dict(effects)}\n")
    return min(faults, 100)


if __name__ == "__main__":
    sys.exit(main())
