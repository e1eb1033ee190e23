"""Sample output: what rankdiff prints for sample_reports/, kept in the tree and compared in tests.

Write it anew with ``python -m tests.golden`` and read the difference before committing it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rankdiff.compare import compare
from rankdiff.render.inspection import to_text as inspection
from rankdiff.render.json import to_json
from rankdiff.render.text import to_text

SAMPLES = Path(__file__).resolve().parent.parent / "sample_reports"


def render(folder: Path) -> dict[str, str]:
    """Render all sample output of one folder of reports, by file name."""
    from rankdiff.compare import read

    paths = [str(p) for p in sorted(folder.glob("*.sqlite"))]
    outcome = compare(paths)
    return {
        "compare.txt": to_text(outcome.comparison, outcome.notes),
        "report.json": to_json(outcome.comparison, outcome.notes),
        "inspect.txt": inspection(read(paths)),
    }


def commands() -> str:
    """Render docs/commands.md: the help of every command."""
    from click.testing import CliRunner

    from rankdiff_cli.main import group

    parts = ["# Commands\n\nWritten by `python -m tests.golden` from the commands' own help.\n"]
    for name in (None, *group.list_commands(None)):
        words = [name, "--help"] if name else ["--help"]
        shown = CliRunner().invoke(group, words, prog_name="rankdiff", terminal_width=80)
        parts.append(f"## rankdiff{f' {name}' if name else ''}\n\n```text\n{shown.output.rstrip()}\n```\n")
    return "\n".join(parts)


def folders() -> list[Path]:
    """All folders of sample reports."""
    return sorted(p.parent for p in SAMPLES.glob("*/prof_*_0.sqlite"))


def main() -> None:
    """Write the sample output and the command reference anew."""
    (SAMPLES.parent / "docs" / "commands.md").write_text(commands(), encoding="utf-8")
    for folder in folders():
        for name, text in render(folder).items():
            (folder / name).write_text(text, encoding="utf-8")
            sys.stdout.write(f"{folder.name}/{name}\n")


if __name__ == "__main__":
    main()
