"""The event times that a pipeline accepts from a source; a row with another one goes to table `rejects`.

Broken clocks send 0, so by default the first millisecond of 1970 is not accepted. The other bounds leave room for the
windows: each time that follows from an accepted row is within the range of times (`tidegate.windowing.time`).

    not_before          the source's own bound
    first, end          range of times, less the longest window, join bound and allowed lateness
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from tidegate.pipelines.definition.pipeline import SourceDescription
from tidegate.windowing.compute import Compute, IntervalJoin, WindowJoin, Windows
from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.time import FIRST_TIME, LAST_TIME, Millis, in_range, show_millis, to_millis


@dataclass(frozen=True, slots=True)
class AcceptedTimes:
    """Event times that a pipeline accepts, int64 epoch milliseconds.

    Args:
        not_before: earliest time, by the source's own bound.
        first: earliest time for which every derived time is in the range of times.
        end: end of the times for which this holds, exclusive; without a gap that the row itself has.
    """

    not_before: Millis
    first: Millis
    end: Millis

    @classmethod
    def of(cls, source: SourceDescription, compute: Compute) -> AcceptedTimes:
        """Return the event times that a computation accepts from a source."""
        before, after = room_of(compute)
        return cls(not_before_of(source), FIRST_TIME + before, LAST_TIME - after)


def not_before_of(source: SourceDescription) -> Millis:
    """Return the earliest event time that a source may have, int64 epoch milliseconds.

    The default is the millisecond after the beginning of 1970 on the source's clock: a clock that was never set shows
    the beginning, in the source's zone if its times are wall-clock times.
    """
    if source.not_before is not None:
        return to_millis(source.not_before)
    zone = "UTC" if source.zone is None else source.zone
    return to_millis(datetime(1970, 1, 1, tzinfo=ZoneInfo(zone))) + 1


def room_of(compute: Compute) -> tuple[Millis, Millis]:
    """Return how far times that are derived from an element may be before and after its own time, milliseconds.

    Gaps that an element has in a column are not included. The operator checks windows of a user's assigner.
    """
    if isinstance(compute, Windows):
        length = compute.assigner.longest_window or 0
        return length, length + compute.lateness
    if isinstance(compute, WindowJoin):
        length = compute.assigner.longest_window or 0
        return length, length
    if isinstance(compute, IntervalJoin):
        # The state keeps an element as the millisecond that begins at its time.
        reach = max(map(abs, compute.bounds)) + 1
        return reach, reach
    return 0, 0


def check_not_before(value: object) -> None:
    """Check the field `not_before` of a source.

    Raises:
        IllegalArgument: the value is not None and not a datetime, or is outside the range of times.
    """
    if value is None:
        return
    if not isinstance(value, datetime):
        raise IllegalArgument(
            "source.not_before", value, "give a datetime, such as datetime(1960, 1, 1, tzinfo=UTC), or leave it out"
        )
    if not in_range(to_millis(value)):
        raise IllegalArgument(
            "source.not_before",
            value,
            f"give a time from {show_millis(FIRST_TIME)} to {show_millis(LAST_TIME - 1)}",
        )
