"""Figures of the ticket: one file each, drawn from a comparison and nothing else."""

from __future__ import annotations

from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from rankdiff.render.plots.quiet import import_matplotlib

if TYPE_CHECKING:  # matplotlib takes half a second to import: only when something is drawn
    from rankdiff.comparison import Comparison
    from rankdiff.render.plots.sheet import Plot

# In the order in which a reader wants them.
FIGURES = ("lateness", "delay", "arrivals", "makeup", "idle", "clock")


def draw_all(c: Comparison) -> list[Plot]:
    """Draw every figure that the comparison has data for.

    Parameters
    ----------
    c : Comparison

    Returns
    -------
    list of Plot
        In the order of FIGURES.
    """
    import_matplotlib()
    drawn = (import_module(f"{__name__}.{figure}").draw(c) for figure in FIGURES)
    return [plot for plot in drawn if plot is not None]


def save(plot: Plot, folder: Path) -> list[Path]:
    """Write a figure as ``NAME.png`` and ``NAME.svg``.

    Parameters
    ----------
    plot : Plot
    folder : Path
        Exists.

    Returns
    -------
    list of Path
        The files written.
    """
    out = []
    for name, data in saved(plot).items():
        out.append(folder / name)
        out[-1].write_bytes(data)
    return out


def saved(plot: Plot) -> dict[str, bytes]:
    """A figure as ``NAME.png`` and ``NAME.svg``, content by name: equal figures give equal bytes."""
    from rankdiff.render.plots.style import look

    out = {}
    with look():
        for ending, metadata, dpi in (
            ("png", {"Software": None}, None),
            ("svg", {"Date": None, "Creator": None}, 240),
        ):
            file = BytesIO()
            # Images inside an SVG have the resolution of the figure; 240 dots keep their cells sharp.
            plot.figure.savefig(file, format=ending, metadata=metadata, dpi=dpi or "figure")
            out[f"{plot.name}.{ending}"] = file.getvalue()
    return out
