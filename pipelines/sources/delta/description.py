"""The description of a Delta table as a pipeline's source."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Literal, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tidegate.pipelines.definition.accepted_times import check_not_before
from tidegate.pipelines.definition.fingerprint import LEFT_OUT_AT_DEFAULT
from tidegate.pipelines.definition.names import check_address
from tidegate.pipelines.definition.pipeline import TimeUnit
from tidegate.windowing.errors import IllegalArgument

if TYPE_CHECKING:
    from tidegate.pipelines.sources.base import Source
    from tidegate.pipelines.sources.watched import WatchedSource
    from tidegate.pipelines.storage.warehouse import Warehouse

Reader = Literal["auto", "spark"]

Changes = Literal["refuse", "ignore", "correct"]
"""Treatment of versions that removed rows."""


@dataclass(frozen=True, slots=True)
class DeltaSource:
    """A Delta table of events.

    Args:
        table: name below the warehouse, or an absolute path or URI.
        timestamp: column of the event time: TIMESTAMP, TIMESTAMP_NTZ with `zone`, or an integer with `unit`.
        zone: time zone of a TIMESTAMP_NTZ column, such as "America/New_York".
        unit: unit of an integer column, counted from the epoch: "s" or "ms".
        not_before: earliest event time of a row, in UTC if it has no zone; earlier rows go to table rejects. None for
            one millisecond after the beginning of 1970, in `zone` if there is one.
        reader: "auto" lets the tasks read the files of a plain table with Arrow; "spark" lets Spark read every table.
        changes: treatment of versions that removed or changed rows, such as an UPDATE: "refuse" ends the run, "ignore"
            skips the whole version, "correct" corrects the windows that it touches.

    Raises:
        IllegalArgument: an empty name, an unknown zone, unit, reader or treatment of changes, or a `not_before` that is
            not a time.
    """

    table: str
    timestamp: str
    zone: str | None = None
    unit: TimeUnit | None = None
    reader: Reader = "auto"
    changes: Changes = field(default="refuse", metadata={LEFT_OUT_AT_DEFAULT: True})
    not_before: datetime | None = field(default=None, metadata={LEFT_OUT_AT_DEFAULT: True})

    def __post_init__(self) -> None:
        for name in ("table", "timestamp"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise IllegalArgument(f"source.{name}", value, "give a name")
        try:
            check_address(self.table)
        except ValueError as error:
            raise IllegalArgument("source.table", f"{self.table.partition(':')[0]}:...", str(error)) from None
        if self.zone is not None:
            try:
                ZoneInfo(self.zone)
            except (ZoneInfoNotFoundError, ValueError, TypeError) as error:
                raise IllegalArgument("source.zone", self.zone, "give a zone such as 'Europe/Berlin'") from error
        if self.unit not in (None, "s", "ms"):
            raise IllegalArgument(
                "source.unit",
                self.unit,
                "give 's' or 'ms'. For microseconds, derive a time from the column, columns={'at': "
                "'timestamp_micros(COLUMN)'}, and use it instead of the number: timestamp='at'",
            )
        check_not_before(self.not_before)
        if self.reader not in ("auto", "spark"):
            raise IllegalArgument("source.reader", self.reader, "give 'auto' or 'spark'")
        if self.changes not in get_args(Changes):
            raise IllegalArgument("source.changes", self.changes, "give 'refuse', 'ignore' or 'correct'")

    def open(self, warehouse: Warehouse) -> Source:
        # DAG files and help texts import this module without opening a table.
        from tidegate.pipelines.sources.delta.log import SourceLog

        return SourceLog(warehouse, warehouse.path(self.table), self.reader, self.changes)

    def watched(self) -> WatchedSource:
        """Return the table as plain values, for a process that watches it; see `WatchableDescription`."""
        from tidegate.pipelines.sources.watched import WatchedSource

        return WatchedSource(f"{__package__}.news", self.table, {"changes": self.changes})
