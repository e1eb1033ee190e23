"""Naive twins of the partition kernels: one nanosecond at a time."""

from __future__ import annotations


def _runs(labelled):
    """Join (t, label) of consecutive ns and equal labels into (start, end, label)."""
    runs = []
    for t, label in labelled:
        if runs and runs[-1][1] == t and runs[-1][2] == label:
            runs[-1][1] = t + 1
        else:
            runs.append([t, t + 1, label])
    return [tuple(run) for run in runs]


def _covering(intervals, t):
    return [i for i, (start, end) in enumerate(intervals) if start <= t < end]


def flatten(intervals):
    """Innermost interval of every ns that one covers, as (start, end, index)."""

    def inwardness(i):
        start, end = intervals[i]
        return (start, -end, i)

    labelled = []
    for t in sorted({t for start, end in intervals for t in range(start, end)}):
        labelled.append((t, max(_covering(intervals, t), key=inwardness)))
    return _runs(labelled)


def partition(windows, layers):
    """First layer over every ns of every window, as (window, start, end, layer, row over all layers)."""
    out = []
    for w, (window_start, window_end) in enumerate(windows):
        labelled = []
        for t in range(window_start, window_end):
            label = (-1, -1)
            rows_before = 0
            for k, layer in enumerate(layers):
                rows = _covering(layer, t)
                if rows:
                    label = (k, rows_before + rows[0])
                    break
                rows_before += len(layer)
            labelled.append((t, label))
        out += [(w, start, end, *label) for start, end, label in _runs(labelled)]
    return out


def split(segments, timeline):
    """Item of the timeline in every ns of every segment, as (segment, start, end, item)."""
    return [(w, start, end, item) for w, start, end, _, item in partition(segments, [timeline])]
