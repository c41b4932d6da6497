"""The rule of lateness, in two forms: for one time, and for arrays of times. All times are int64 epoch milliseconds.

    a window stays open until the watermark reaches its cleanup time: its last millisecond plus the allowed lateness
    an element that no window accepts is late if the same holds for its own time
    a window of a join has no allowed lateness

Both operators, the commands that explain lateness and the checks call these functions. Source: Flink's `isWindowLate`,
`isElementLate` and `cleanupTime`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tidegate.windowing.time import LAST_TIME, MAX_TIMESTAMP, Millis


def cleanup_time(last: Millis, lateness: Millis) -> Millis:
    """Return the time at which a window is cleaned up, given its last millisecond: at most the last time of the range.

    A window that waits for that time is cleaned up at the end of input. The global window, and windows after the range,
    which only an operator outside of a pipeline gets, are cleaned up as in Flink: if the sum exceeds int64, never.
    """
    return min(last + lateness, MAX_TIMESTAMP if last >= LAST_TIME else LAST_TIME - 1)


def cleanup_times(lasts: npt.NDArray[np.int64], lateness: Millis) -> npt.NDArray[np.int64]:
    """Return `cleanup_time` of each time."""
    if lateness == 0:
        return lasts
    cleanups = np.minimum(lasts, MAX_TIMESTAMP - lateness) + lateness
    return np.where(lasts < LAST_TIME, np.minimum(cleanups, LAST_TIME - 1), cleanups)


def is_late(time: Millis, lateness: Millis, watermark: Millis) -> bool:
    """Return True if a watermark has passed a time by the allowed lateness.

    The time is that of an element, or the last millisecond of a window.
    """
    return cleanup_time(time, lateness) <= watermark


def are_late(
    times: npt.NDArray[np.int64], lateness: Millis, watermarks: npt.NDArray[np.int64] | Millis
) -> npt.NDArray[np.bool_]:
    """Return `is_late` of each time, at its watermark."""
    late: npt.NDArray[np.bool_] = cleanup_times(times, lateness) <= watermarks
    return late
