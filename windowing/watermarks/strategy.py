"""Watermark strategy: the declaration of a source's timestamps and watermarks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from tidegate.windowing.errors import IllegalArgument, MissingTimestamp
from tidegate.windowing.facts import check_together
from tidegate.windowing.time import (
    Duration,
    Millis,
    non_negative_millis,
    positive_millis,
)
from tidegate.windowing.watermarks.generator import (
    AscendingTimestampsWatermarks,
    BoundedOutOfOrdernessWatermarks,
    BoundedOutOfOrdernessWithIdleAdvance,
    NoWatermarks,
    WatermarkGenerator,
)
from tidegate.windowing.watermarks.idleness import Clock, WatermarksWithIdleness


@dataclass(frozen=True, slots=True)
class WatermarkAlignmentParams:
    """Settings of Flink's watermark alignment: a source that is ahead of its group by more than the drift pauses.

    A pipeline refuses them, because it reads each source commit by commit.

    Args:
        group: name of the group of sources that are aligned with each other.
        max_drift: how far a source may be ahead of the smallest watermark of its group.
        update_interval: processing time from one announcement of the limit to the next.

    Raises:
        IllegalArgument: the group is empty, the drift is negative, or the interval is not greater than zero.
    """

    group: str
    max_drift: Millis
    update_interval: Millis = 1000

    def __post_init__(self) -> None:
        if not isinstance(self.group, str) or not self.group:
            raise IllegalArgument("group", self.group, "give the group of sources a name")
        object.__setattr__(self, "max_drift", non_negative_millis(self.max_drift, "max_drift"))
        object.__setattr__(self, "update_interval", positive_millis(self.update_interval, "update_interval"))


GeneratorSupplier: TypeAlias = Callable[[], WatermarkGenerator]
"""Function that makes a generator, for a stream or source partition."""

TimestampAssigner: TypeAlias = Callable[[Any, Millis | None], Millis]
"""Function `(element, given timestamp or None) -> timestamp`, int64 epoch milliseconds."""

DEFAULT_INTERVAL: Millis = 200


@dataclass(frozen=True, slots=True)
class _BuiltIn:
    """Supplier of a generator of this library. It compares by factory and settings."""

    factory: str
    generator: Callable[..., WatermarkGenerator]
    settings: tuple[Millis, ...] = ()

    def __call__(self) -> WatermarkGenerator:
        return self.generator(*self.settings)

    def __repr__(self) -> str:
        return f"{self.factory}({', '.join(map(str, self.settings))})"


@dataclass(frozen=True, slots=True, repr=False)
class WatermarkStrategy:
    """Timestamps, watermarks, idleness and alignment of a source. Source: Flink's `WatermarkStrategy`.

    Use the factories, then the methods `with_...`. Two strategies with the same settings are equal.

    Args:
        supplier: function that creates generators.
        timestamp_assigner: function that returns the timestamp of an element; None keeps the given timestamps.
        idle_timeout: time without events after which a stream is idle, milliseconds; None if a stream is never idle.
        alignment: settings of watermark alignment; None if the source is not aligned with others.
        interval: interval of periodic emission, milliseconds; 0 turns it off.

    Example:
        >>> from datetime import timedelta
        >>> WatermarkStrategy.for_bounded_out_of_orderness(timedelta(hours=1)).with_idleness(timedelta(minutes=10))
        WatermarkStrategy.for_bounded_out_of_orderness(3600000).with_idleness(600000)
    """

    supplier: GeneratorSupplier
    timestamp_assigner: TimestampAssigner | None = None
    idle_timeout: Millis | None = None
    alignment: WatermarkAlignmentParams | None = None
    interval: Millis = DEFAULT_INTERVAL

    def __post_init__(self) -> None:
        if not callable(self.supplier):
            raise IllegalArgument("supplier", self.supplier, "give a function that creates a WatermarkGenerator")
        if self.timestamp_assigner is not None and not callable(self.timestamp_assigner):
            raise IllegalArgument(
                "timestamp_assigner", self.timestamp_assigner, "give a function (element, timestamp) -> timestamp"
            )
        if self.idle_timeout is not None:
            object.__setattr__(self, "idle_timeout", positive_millis(self.idle_timeout, "idle_timeout"))
        object.__setattr__(self, "interval", non_negative_millis(self.interval, "interval"))

    @classmethod
    def for_bounded_out_of_orderness(cls, delay: Duration) -> WatermarkStrategy:
        """Create the strategy for events that are at most `delay` behind the largest timestamp.

        Raises:
            IllegalArgument: the delay is negative.
        """
        bound = non_negative_millis(delay, "delay")
        return cls(_BuiltIn("for_bounded_out_of_orderness", BoundedOutOfOrdernessWatermarks, (bound,)))

    @classmethod
    def for_bounded_out_of_orderness_with_idle_advance(
        cls, delay: Duration, wait: Duration, interval: Duration = DEFAULT_INTERVAL
    ) -> WatermarkStrategy:
        """Create the bounded-out-of-orderness strategy whose event time also advances after `wait` without events.

        Raises:
            IllegalArgument: the delay or the wait is negative, or the interval is not greater than zero.
        """
        settings = (
            non_negative_millis(delay, "delay"),
            non_negative_millis(wait, "wait"),
            positive_millis(interval, "interval"),
        )
        supplier = _BuiltIn(
            "for_bounded_out_of_orderness_with_idle_advance", BoundedOutOfOrdernessWithIdleAdvance, settings
        )
        return cls(supplier, interval=settings[2])

    @classmethod
    def for_monotonous_timestamps(cls) -> WatermarkStrategy:
        """Create the strategy for events that arrive in the order of their timestamps."""
        return cls(_BuiltIn("for_monotonous_timestamps", AscendingTimestampsWatermarks))

    @classmethod
    def no_watermarks(cls) -> WatermarkStrategy:
        """Create the strategy without watermarks, for pipelines in processing time."""
        return cls(_BuiltIn("no_watermarks", NoWatermarks))

    @classmethod
    def for_generator(cls, supplier: GeneratorSupplier) -> WatermarkStrategy:
        """Create the strategy with a user's generators. A generator class without arguments is a supplier too."""
        return cls(supplier)

    def with_timestamp_assigner(self, assigner: TimestampAssigner) -> WatermarkStrategy:
        """Return this strategy with timestamps from `assigner`: `(element, given timestamp or None) -> timestamp`."""
        return replace(self, timestamp_assigner=assigner)

    def with_out_of_orderness(self, delay: Duration) -> WatermarkStrategy:
        """Return this strategy with another bound on out-of-orderness.

        Raises:
            IllegalArgument: the delay is negative, or the generator is not a built-in one with such a bound.
        """
        if self.out_of_orderness is None or not isinstance(self.supplier, _BuiltIn):
            raise IllegalArgument("delay", delay, "the generator of this strategy has no bound on out-of-orderness")
        bound = non_negative_millis(delay, "delay")
        if len(self.supplier.settings) > 1:
            return replace(self, supplier=replace(self.supplier, settings=(bound, *self.supplier.settings[1:])))
        return replace(self, supplier=WatermarkStrategy.for_bounded_out_of_orderness(bound).supplier)

    def with_idleness(self, timeout: Duration) -> WatermarkStrategy:
        """Return this strategy with idleness: a stream is idle after more than `timeout` without events.

        Raises:
            IllegalArgument: the timeout is not greater than zero.
        """
        return replace(self, idle_timeout=positive_millis(timeout, "timeout"))

    def with_watermark_alignment(
        self, group: str, max_drift: Duration, update_interval: Duration = 1000
    ) -> WatermarkStrategy:
        """Return this strategy with alignment: a source pauses if it is more than `max_drift` ahead of its group.

        Raises:
            IllegalArgument: the group is empty, the drift is negative, or the interval is not greater than zero.
        """
        drift, every = non_negative_millis(max_drift, "max_drift"), positive_millis(update_interval, "update_interval")
        return replace(self, alignment=WatermarkAlignmentParams(group, drift, every))

    def with_interval(self, interval: Duration) -> WatermarkStrategy:
        """Return this strategy with an interval of periodic emission in processing time. 0 turns it off.

        Raises:
            IllegalArgument: the interval is negative.
        """
        return replace(self, interval=non_negative_millis(interval, "interval"))

    @property
    def reads_events(self) -> bool:
        """True if the generators need every event. The built-in ones need only the largest timestamp."""
        return self._generator is None or self._generator.reads_events

    @property
    def moves_by_clock(self) -> bool:
        """True if watermarks may advance while no events arrive, by idleness or by the generators."""
        return self.idle_timeout is not None or self._generator is None or self._generator.moves_by_clock

    @property
    def out_of_orderness(self) -> Millis | None:
        """Bound on out-of-orderness of a built-in generator, milliseconds; None for other generators."""
        if not isinstance(self.supplier, _BuiltIn) or self.supplier.generator is NoWatermarks:
            return None
        return self.supplier.settings[0] if self.supplier.settings else 0

    @property
    def _generator(self) -> WatermarkGenerator | None:
        """A built-in generator, whose facts are read. None for a user's supplier, because its generators may differ."""
        return self.supplier() if isinstance(self.supplier, _BuiltIn) else None

    def create_generator(self, clock: Clock) -> WatermarkGenerator:
        """Return a new generator, with idleness detection if the strategy has a timeout.

        Args:
            clock: processing time, int64 epoch milliseconds.

        Raises:
            IllegalArgument: the supplier returned something other than a `WatermarkGenerator`.
            UnsupportedOperation: the generator overrides only one of `snapshot` and `restore`.
        """
        generator = self.supplier()
        if not isinstance(generator, WatermarkGenerator):
            raise IllegalArgument("supplier", self.supplier, f"it returned {generator!r}, not a WatermarkGenerator")
        check_together(generator, WatermarkGenerator, "snapshot", "restore")
        if self.idle_timeout is None:
            return generator
        return WatermarksWithIdleness(generator, self.idle_timeout, clock)

    def create_timestamp_assigner(self) -> TimestampAssigner:
        """Return the timestamp assigner; by default, the function that returns the given timestamp."""
        return self.timestamp_assigner or _record_timestamp

    def __repr__(self) -> str:
        factory = self.supplier if isinstance(self.supplier, _BuiltIn) else f"for_generator({self.supplier!r})"
        parts = [f"WatermarkStrategy.{factory}"]
        if self.timestamp_assigner is not None:
            parts.append(f"with_timestamp_assigner({self.timestamp_assigner!r})")
        if self.idle_timeout is not None:
            parts.append(f"with_idleness({self.idle_timeout})")
        if self.alignment is not None:
            group, drift, every = self.alignment.group, self.alignment.max_drift, self.alignment.update_interval
            parts.append(f"with_watermark_alignment({group!r}, {drift}, {every})")
        if self.interval != DEFAULT_INTERVAL:
            parts.append(f"with_interval({self.interval})")
        return ".".join(parts)


def _record_timestamp(element: Any, timestamp: Millis | None) -> Millis:
    if timestamp is None:
        raise MissingTimestamp
    return timestamp
