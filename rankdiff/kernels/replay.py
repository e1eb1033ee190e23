"""Play the collectives of a job again, with other times between them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rankdiff.kernels._jit import jit

I64 = NDArray[np.int64]


@jit
def replayed_ends(first: I64, anchor: I64, segment: I64, transfer: I64) -> I64:
    """End of every collective when each member arrives a given time after an earlier one has ended.

    A collective ends for all its members at once: its transfer after the last of them has arrived.

    Parameters
    ----------
    first : (m + 1,) int64
        Instance i has the elements first[i] .. first[i + 1] - 1, one a member and at least one. In order of
        time: an instance comes after all those that its elements are anchored to.
    anchor : (e,) int64
        Instance after whose end the element's segment begins, smaller than its own; -1: after time 0.
    segment : (e,) int64, ns
    transfer : (m,) int64, ns

    Returns
    -------
    (m,) int64, ns
        Empty for no instances.
    """
    m = first.size - 1
    end = np.empty(m, np.int64)
    for i in range(m):
        x = first[i]
        last = segment[x] + (end[anchor[x]] if anchor[x] >= 0 else 0)
        for x in range(first[i] + 1, first[i + 1]):
            arrival = segment[x] + (end[anchor[x]] if anchor[x] >= 0 else 0)
            last = max(last, arrival)
        end[i] = last + transfer[i]
    return end
