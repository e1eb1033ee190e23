"""One look for all figures: colours, fonts, sizes, and how names from an export are shown.

Most colours are of the Okabe-Ito and Tol palettes; all are told apart with the common colour blindnesses, which a
test checks. Where two meet in one stack they differ in lightness too, or one is hatched, or a white line parts
them, so that they survive a print in grey.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

import matplotlib as mpl
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.font_manager import FontProperties, findfont, get_font

from rankdiff.render.plots.quiet import quietly

WIDTH = 1000  # px, what a ticket shows without scaling
MAX_HEIGHT = 1600  # px
DPI = 120
MARGIN = 16  # px

TITLE, TEXT, SMALL = 13.0, 9.0, 8.0  # points
LINE = 15  # px between two labels of size SMALL that do not touch

INK = "#1A1A1A"
FAINT = "#5F6670"
RULE = "#C9CED6"
BUSY = "#EEF1F5"  # the GPU works: background of the idle figure
CULPRIT = "#B5400A"  # Okabe-Ito's vermillion, darkened so that text in it can be read
OTHERS = "#E3A27C"
Patch = dict[str, Any]  # how matplotlib draws a rectangle

NOT_MEASURED: Patch = {"facecolor": "#F0F0F0", "edgecolor": "#A0A0A0", "hatch": "////", "linewidth": 0.0}

# The GPU at work is blue, from dark to pale; what the GPU waits for has the other colours.
PART_COLOURS = {
    "compute": "#0072B2",
    "exposed_transfer": "#56B4E9",
    "exposed_wait": "#D6E6F5",
    "copy": "#7F5A3C",
}
WAIT: Patch = {
    "facecolor": PART_COLOURS["exposed_wait"],
    "edgecolor": "#6F9DC8",
    "hatch": "////",
    "linewidth": 0.5,
}
PART_LABELS = {
    "compute": "compute",
    "exposed_transfer": "exposed transfer",
    "exposed_wait": "exposed wait",
    "copy": "copies",
}
CAUSE_COLOURS = {
    "data_load": "#E69F00",
    "io": "#F0E442",
    "os_wait": "#AA4499",
    "host": "#882255",
    "preempted": "#332288",
    "sync": "#009E73",
    "alloc": "#A6D854",
    "launch": "#D55E00",
    "profiler": "#000000",
    "unknown": "#9E9E9E",
}
CAUSE_HATCHES = {"os_wait": "\\\\\\\\"}  # in bars, where it meets the blue of compute
CAUSE_LABELS = {
    "data_load": "data loading",
    "io": "file operations",
    "os_wait": "waiting in the OS",
    "host": "host code",
    "preempted": "scheduled out",
    "sync": "synchronising calls",
    "alloc": "memory allocation",
    "launch": "launches",
    "profiler": "the profiler",
    "unknown": "cause not known",
}
# The same after "the time goes" or "idles 12 ms a step".
CAUSE_WORDS = {
    "data_load": "in data loading",
    "io": "in file operations",
    "os_wait": "waiting in the OS",
    "host": "in host code",
    "preempted": "scheduled out",
    "sync": "in synchronising calls",
    "alloc": "in memory allocation",
    "launch": "in launches",
    "profiler": "in the profiler",
    "unknown": "for a cause not known",
}
NODE_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
NODE_MARKERS = ("o", "s", "^", "D", "v", "P")

# Delay: white is none, darker is more, black is beyond the scale. Lightness falls all the way.
DELAY_MAP = LinearSegmentedColormap.from_list(
    "delay", ["#FFFFFF", "#FBE0A8", "#EE9B3B", "#C4500F", "#7A1F0B"]
).with_extremes(over="#000000")

FONT = "DejaVu Sans"  # comes with matplotlib: the same on every machine
_CUT = 24

# What a matplotlibrc of the user could change; backends and paths are left alone.
_OURS = frozenset(
    [
        "agg",
        "axes",
        "figure",
        "font",
        "grid",
        "hatch",
        "image",
        "legend",
        "lines",
        "mathtext",
        "patch",
        "path",
        "pcolor",
        "savefig",
        "scatter",
        "svg",
        "text",
        "xtick",
        "ytick",
    ]
)
_SETTINGS: dict[str, Any] = {
    "font.family": FONT,
    "font.size": TEXT,
    "text.usetex": False,
    "text.parse_math": False,  # a `$` in a name is a dollar sign
    "svg.fonttype": "path",
    "svg.hashsalt": "rankdiff",
    "hatch.linewidth": 0.6,
    "axes.formatter.useoffset": False,
    "axes.edgecolor": FAINT,
    "axes.linewidth": 0.7,
    "axes.labelcolor": INK,
    "axes.labelsize": TEXT,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "text.color": INK,
}


@contextmanager
def look() -> Iterator[None]:
    """Settings under which figures are made and saved; those of the program come back afterwards."""
    with quietly(), warnings.catch_warnings():
        warnings.simplefilter("ignore", mpl.MatplotlibDeprecationWarning)
        settings: Any = {k: v for k, v in mpl.rcParamsDefault.items() if k.split(".")[0] in _OURS}
        with mpl.rc_context(settings | _SETTINGS):
            yield


P = ParamSpec("P")
T = TypeVar("T")


def styled(draw: Callable[P, T]) -> Callable[P, T]:
    """Run a function under `look`."""

    @wraps(draw)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        with look():
            return draw(*args, **kwargs)

    return wrapper


def font(size: float, bold: bool = False) -> FontProperties:
    """The font of all figures in a size."""
    return FontProperties(family=FONT, size=size, weight="bold" if bold else "normal")


@cache
def _glyphs() -> frozenset[int]:
    """Code points the font can show."""
    return frozenset(get_font(findfont(FontProperties(family=FONT))).get_charmap())


def ink_on(colour: str) -> str:
    """Black or white, whichever is read better on a colour."""
    red, green, blue = (c**2.2 for c in to_rgb(colour))
    return INK if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.2 else "white"


def name(text: str, cut: int = _CUT) -> str:
    """A name from an export as figures and captions show it.

    Names are untrusted: what cannot be printed, or is not in the font, becomes ``?``, and a long one keeps its
    beginning and its end, which tells hosts apart.
    """
    shown = "".join(c if c.isprintable() and ord(c) in _glyphs() else "?" for c in text)
    if len(shown) <= cut:
        return shown
    tail = (cut - 1) // 3
    return f"{shown[: cut - 1 - tail]}…{shown[-tail:]}"


def unit_of(most_ns: float) -> tuple[float, str]:
    """Unit for an axis that reaches so far: (ns per unit, name)."""
    for scale, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if most_ns >= (10 if unit == "s" else 1) * scale:
            return scale, unit
    return (1e6, "ms") if most_ns <= 0 else (1.0, "ns")


def number(x: float, _: object = None) -> str:
    """A tick label: no exponent, no offset."""
    return f"{x:,.10g}".replace("-", "−")
