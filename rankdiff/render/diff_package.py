"""All files of a difference folder."""

from __future__ import annotations

from rankdiff.differences.difference import Difference
from rankdiff.differences.gate import Gate
from rankdiff.render.diff_document import document
from rankdiff.render.diff_json import to_json
from rankdiff.render.document import Picture
from rankdiff.render.html import to_html
from rankdiff.render.markdown import to_markdown


def diff_files(d: Difference, command: str, plots: bool = True, gate: Gate | None = None) -> dict[str, bytes]:
    """Make the files of a difference.

    Parameters
    ----------
    d : Difference
    command : str
        How to make them again.
    plots : bool
        With the picture.
    gate : Gate, optional

    Returns
    -------
    dict of str to bytes
        By relative path: diff.md, diff.html, diff.json, plots/; the same difference gives the same bytes.
    """
    files: dict[str, bytes] = {}
    pictures: list[Picture] = []
    vector: dict[str, bytes] = {}
    if plots:
        from rankdiff.render.plots import saved
        from rankdiff.render.plots.quiet import import_matplotlib

        import_matplotlib()
        from rankdiff.render.plots.before_after import draw

        plot = draw(d)
        if plot is not None:
            files |= {f"plots/{name}": data for name, data in saved(plot).items()}
            vector[plot.name] = files[f"plots/{plot.name}.svg"]
            pictures.append(Picture(plot.name, plot.title, plot.caption))
    blocks = document(d, pictures, command, gate)
    files["diff.md"] = to_markdown(blocks).encode()
    files["diff.html"] = to_html(blocks, vector).encode()
    files["diff.json"] = to_json(d, gate).encode()
    return files
