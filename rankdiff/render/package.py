"""All files of a ticket folder."""

from __future__ import annotations

from collections.abc import Sequence

from rankdiff.comparison import Comparison
from rankdiff.gaps import MIN_GAP_NS
from rankdiff.notes import Note
from rankdiff.render.document import Picture
from rankdiff.render.html import to_html
from rankdiff.render.json import to_json
from rankdiff.render.markdown import to_markdown
from rankdiff.render.ticket import ticket


def ticket_files(
    c: Comparison, notes: Sequence[Note], command: str, plots: bool = True, min_gap_ns: int = MIN_GAP_NS
) -> dict[str, bytes]:
    """Make the files of a ticket.

    Parameters
    ----------
    c : Comparison
    notes : sequence of Note
        Further warnings, of reading the reports.
    command : str
        How to make the ticket again.
    plots : bool
        With pictures.
    min_gap_ns : int
        Shorter idle gaps are not listed.

    Returns
    -------
    dict of str to bytes
        By relative path; the same comparison gives the same bytes.
    """
    files: dict[str, bytes] = {}
    pictures: list[Picture] = []
    vector: dict[str, bytes] = {}
    if plots:
        from rankdiff.render.plots import draw_all, saved

        for plot in draw_all(c):
            files |= {f"plots/{name}": data for name, data in saved(plot).items()}
            vector[plot.name] = files[f"plots/{plot.name}.svg"]
            pictures.append(Picture(plot.name, plot.title, plot.caption))
    blocks = ticket(c, notes, pictures, command, min_gap_ns)
    files["report.md"] = to_markdown(blocks).encode()
    files["report.html"] = to_html(blocks, vector).encode()
    files["report.json"] = to_json(c, notes, min_gap_ns).encode()
    return files
