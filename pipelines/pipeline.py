"""A pipeline is a value: what to read, how to key it, and what to compute. Importing it costs no Spark.

It is checked when it is made (names, sizes, combinations); columns and types are checked against
the source before anything is written. Each error names the field, the value and the way out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pipelines.names import check_name
from windowing.compute import Windows
from windowing.errors import IllegalArgument
from windowing.keys import DEFAULT_MAX_PARALLELISM, check_max_parallelism
from windowing.time import Duration, Millis, millis, non_negative_millis, positive_millis
from windowing.watermarks import WatermarkStrategy

TimeUnit = Literal["s", "ms"]


@dataclass(frozen=True, slots=True)
class DeltaSource:
    """An append-only Delta table of events.

    Args:
        table: name below the warehouse, or an absolute path or URI.
        timestamp: column of the event time: TIMESTAMP, TIMESTAMP_NTZ with `zone`, or an integer with `unit`.
        zone: time zone of a TIMESTAMP_NTZ column, such as "America/New_York".
        unit: what an integer column counts since the epoch: "s" or "ms".

    Raises:
        IllegalArgument: an empty name, an unknown zone or unit.
    """

    table: str
    timestamp: str
    zone: str | None = None
    unit: TimeUnit | None = None

    def __post_init__(self) -> None:
        for name in ("table", "timestamp"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise IllegalArgument(f"source.{name}", value, "give a name")
        if self.zone is not None:
            try:
                ZoneInfo(self.zone)
            except (ZoneInfoNotFoundError, ValueError) as error:
                raise IllegalArgument("source.zone", self.zone, "give a zone such as 'Europe/Berlin'") from error
        if self.unit not in (None, "s", "ms"):
            raise IllegalArgument("source.unit", self.unit, "give 's' or 'ms'")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """What to read, how to key it, what to compute.

    Args:
        name: letters, digits, `_` and `-`; it names the folder of the pipeline's tables.
        source: where events come from.
        key: columns by which elements belong together; empty for all in one.
        compute: the windows, and what becomes of their contents.
        watermark: how event time advances in a stream.
        watermark_by: column of source partitions that have watermarks of their own.
        where: SQL condition; rows for which it is not true are dropped and counted.
        columns: derived columns by name, as SQL expressions over the source's.
        uses: columns that `process`, `reduce` or a user's aggregate reads; None for all.
        null_keys: what happens to a row with a null in its key.
        max_ahead: how far a timestamp may lie ahead of its commit time before it is rejected.
        max_parallelism: number of key groups, fixed for the pipeline's life.
        parallelism: number of shards; None takes one for each core.
        checkpoint_interval: the longest time between snapshots while only clocks move.

    Raises:
        IllegalArgument: a value that can't be; the error names the field.
    """

    name: str
    source: DeltaSource
    key: tuple[str, ...]
    compute: Windows
    watermark: WatermarkStrategy
    watermark_by: str | None = None
    where: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    uses: tuple[str, ...] | None = None
    null_keys: Literal["reject", "keep"] = "reject"
    max_ahead: Duration = timedelta(days=1)
    max_parallelism: int = DEFAULT_MAX_PARALLELISM
    parallelism: int | None = None
    checkpoint_interval: Duration = timedelta(minutes=1)

    def __post_init__(self) -> None:
        try:
            check_name(self.name)
        except (ValueError, TypeError) as error:
            raise IllegalArgument("name", self.name, str(error)) from error
        for name, kind in (("source", DeltaSource), ("compute", Windows), ("watermark", WatermarkStrategy)):
            value = getattr(self, name)
            if not isinstance(value, kind):
                raise IllegalArgument(name, value, f"give a {kind.__name__}")
        if isinstance(self.key, str):  # type: ignore[unreachable]
            raise IllegalArgument("key", self.key, f"give a tuple of columns: ({self.key!r},)")
        object.__setattr__(self, "key", tuple(self.key))
        if len(set(self.key)) != len(self.key):
            raise IllegalArgument("key", self.key, "name each key column once")
        if self.null_keys not in ("reject", "keep"):
            raise IllegalArgument("null_keys", self.null_keys, "give 'reject' or 'keep'")
        non_negative_millis(self.max_ahead, "max_ahead")
        positive_millis(self.checkpoint_interval, "checkpoint_interval")
        check_max_parallelism(self.max_parallelism)
        if self.parallelism is not None and not 1 <= self.parallelism <= self.max_parallelism:
            raise IllegalArgument(
                "parallelism", self.parallelism, f"give 1 to max_parallelism ({self.max_parallelism})"
            )

    @property
    def max_ahead_millis(self) -> Millis:
        """`max_ahead` in milliseconds."""
        return millis(self.max_ahead, "max_ahead")
