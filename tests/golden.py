"""Sample output: what rankdiff prints, writes and draws for sample_reports/, kept in the tree and compared in tests.

Write it anew with ``python -m tests.golden`` and read the difference before committing it. Pictures depend on the
version of matplotlib, so their plotted data are compared, not their pixels.
"""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner

from rankdiff.differences.difference import differ
from rankdiff.differences.inputs import load_side
from rankdiff.pipeline import compare, read
from rankdiff.render.diff_package import diff_files
from rankdiff.render.diff_text import to_text as diff_text
from rankdiff.render.inspection import to_text as inspection
from rankdiff.render.package import ticket_files
from rankdiff.render.plots import draw_all
from rankdiff.render.text import to_text
from rankdiff_cli.main import group

ROOT = Path(__file__).resolve().parent.parent
SAMPLES = ROOT / "sample_reports"
TICKET = "ticket/"
DIFFERENCE = SAMPLES / "difference"


def folders() -> list[Path]:
    """All folders of sample reports."""
    return sorted(p.parent for p in SAMPLES.glob("*/prof_*_0.sqlite"))


def render(folder: Path, pictures: bool) -> dict[str, bytes]:
    """Render the sample output of one folder of reports, by file name."""
    paths = [str(p) for p in sorted(folder.glob("*.sqlite"))]
    outcome = compare(paths)
    c, notes = outcome.comparison, outcome.notes
    command = f"rankdiff compare {' '.join(Path(p).name for p in paths)} -o ticket"
    files = ticket_files(c, notes, command)
    plotted = {plot.name: {k: _plain(x) for k, x in plot.data.items()} for plot in draw_all(c)}
    kept = {TICKET + n: data for n, data in files.items() if pictures or n in ("report.md", "report.json")}
    return kept | {
        "compare.txt": to_text(c, notes).encode(),
        "inspect.txt": inspection(read(paths)).encode(),
        "plotted.json": (json.dumps(plotted, separators=(",", ":"), sort_keys=True) + "\n").encode(),
    }


def _plain(x: Any) -> Any:
    """Plotted values to four digits: the last bits of a sum are nobody's business."""
    if is_dataclass(x) and not isinstance(x, type):
        return _plain({f.name: getattr(x, f.name) for f in fields(x)})
    if isinstance(x, (set, frozenset)):
        return _plain(sorted(x))
    if isinstance(x, dict):
        return {str(k): _plain(v) for k, v in x.items()}
    if isinstance(x, np.ndarray):
        return _plain(x.tolist())
    if isinstance(x, (list, tuple)):
        return [_plain(v) for v in x]
    if isinstance(x, (float, np.floating)):
        return None if np.isnan(x) else float(f"{x:.4g}")
    return x.item() if isinstance(x, np.generic) else x


def difference(pictures: bool) -> dict[str, bytes]:
    """Render the sample of ``rankdiff diff``, by file name."""
    d = differ(load_side([str(SAMPLES / "late_rank")]), load_side([str(SAMPLES / "healthy")]))
    files = diff_files(d, "rankdiff diff late_rank healthy -o diff")
    kept = {f"diff/{n}": data for n, data in files.items() if pictures or n in ("diff.md", "diff.json")}
    return kept | {"diff.txt": diff_text(d).encode()}


def commands() -> str:
    """Render docs/commands.md: the help of every command."""
    parts = ["# Commands\n\nWritten by `python -m tests.golden` from the commands' own help.\n"]
    for name in (None, *group.list_commands(None)):
        words = [name, "--help"] if name else ["--help"]
        shown = CliRunner().invoke(group, words, prog_name="rankdiff", terminal_width=80)
        title = f"rankdiff {name}" if name else "rankdiff"
        parts.append(f"## {title}\n\n```text\n{shown.output.rstrip()}\n```\n")
    return "\n".join(parts)


def readme(text: str) -> str:
    """README.md with the first screen of the sample report in it."""
    begin = text.index("```text\n") + len("```text\n")
    end = text.index("```\n", begin)
    return text[:begin] + (SAMPLES / "late_rank" / "compare.txt").read_text(encoding="utf-8") + text[end:]


def main() -> None:
    """Write the sample output, the command reference and the README's screen anew."""
    (ROOT / "docs" / "commands.md").write_text(commands(), encoding="utf-8")
    for folder in folders():
        shutil.rmtree(folder / TICKET, ignore_errors=True)
        for name, data in render(folder, pictures=True).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
            sys.stdout.write(f"{folder.name}/{name}\n")
    shutil.rmtree(DIFFERENCE, ignore_errors=True)
    for name, data in difference(pictures=True).items():
        (DIFFERENCE / name).parent.mkdir(parents=True, exist_ok=True)
        (DIFFERENCE / name).write_bytes(data)
        sys.stdout.write(f"{DIFFERENCE.name}/{name}\n")
    page = ROOT / "README.md"
    page.write_text(readme(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
