"""How a source's events get timestamps and watermarks: a value that a pipeline is declared with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from tidegate.windowing.errors import IllegalArgument, MissingTimestamp
from tidegate.windowing.time import Duration, Millis, non_negative_millis, positive_millis
from tidegate.windowing.watermarks.alignment import WatermarkAlignmentParams
from tidegate.windowing.watermarks.bounded import (
    AscendingTimestampsWatermarks,
    BoundedOutOfOrdernessWatermarks,
    NoWatermarks,
)
from tidegate.windowing.watermarks.generator import WatermarkGenerator
from tidegate.windowing.watermarks.idleness import Clock, WatermarksWithIdleness
from tidegate.windowing.watermarks.logical import BoundedOutOfOrdernessWithIdleAdvance

GeneratorSupplier: TypeAlias = Callable[[], WatermarkGenerator]
"""Makes one generator for each stream or source partition."""

TimestampAssigner: TypeAlias = Callable[[Any, Millis | None], Millis]
"""`(element, timestamp it came with or None) -> timestamp`, int64 epoch milliseconds."""

DEFAULT_INTERVAL: Millis = 200


@dataclass(frozen=True, slots=True)
class _BuiltIn:
    """A supplier that is a value: what the library's generators are made of, and by which factory."""

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

    Two strategies with the same settings are equal; use the factories, then `with_...`.

    Args:
        supplier: makes generators.
        timestamp_assigner: gives elements their timestamps; None leaves those they came with.
        idle_timeout: after how long without events a stream is idle, milliseconds; None: never.
        alignment: with which sources it keeps step; None: with none.
        interval: of periodic emission, milliseconds; 0 turns it off.

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
            raise IllegalArgument("supplier", self.supplier, "give a function that makes a WatermarkGenerator")
        if self.timestamp_assigner is not None and not callable(self.timestamp_assigner):
            raise IllegalArgument(
                "timestamp_assigner", self.timestamp_assigner, "give a function (element, timestamp) -> timestamp"
            )
        if self.idle_timeout is not None:
            object.__setattr__(self, "idle_timeout", positive_millis(self.idle_timeout, "idle_timeout"))
        object.__setattr__(self, "interval", non_negative_millis(self.interval, "interval"))

    @classmethod
    def for_bounded_out_of_orderness(cls, delay: Duration) -> WatermarkStrategy:
        """Events lie at most `delay` behind the largest timestamp.

        Raises:
            IllegalArgument: the delay is negative.
        """
        bound = non_negative_millis(delay, "delay")
        return cls(_BuiltIn("for_bounded_out_of_orderness", BoundedOutOfOrdernessWatermarks, (bound,)))

    @classmethod
    def for_bounded_out_of_orderness_with_idle_advance(
        cls, delay: Duration, wait: Duration, interval: Duration = DEFAULT_INTERVAL
    ) -> WatermarkStrategy:
        """As above, and after `wait` without events time goes on by itself.

        Raises:
            IllegalArgument: a negative delay or wait, or an interval that is not greater than zero.
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
        """Events come in the order of their timestamps."""
        return cls(_BuiltIn("for_monotonous_timestamps", AscendingTimestampsWatermarks))

    @classmethod
    def no_watermarks(cls) -> WatermarkStrategy:
        """Event time does not move: for pipelines in processing time."""
        return cls(_BuiltIn("no_watermarks", NoWatermarks))

    @classmethod
    def for_generator(cls, supplier: GeneratorSupplier) -> WatermarkStrategy:
        """Generators of one's own; a class without arguments is a supplier that compares by value."""
        return cls(supplier)

    def with_timestamp_assigner(self, assigner: TimestampAssigner) -> WatermarkStrategy:
        """Take timestamps from elements: `(element, timestamp it came with or None) -> timestamp`."""
        return replace(self, timestamp_assigner=assigner)

    def with_idleness(self, timeout: Duration) -> WatermarkStrategy:
        """Call a stream idle after more than `timeout` without events.

        Raises:
            IllegalArgument: the timeout is not greater than zero.
        """
        return replace(self, idle_timeout=positive_millis(timeout, "idle_timeout"))

    def with_watermark_alignment(
        self, group: str, max_drift: Duration, update_interval: Duration = 1000
    ) -> WatermarkStrategy:
        """Keep step with the sources of `group`: pause when more than `max_drift` ahead of the last.

        Raises:
            IllegalArgument: no group, a negative drift, or an interval that is not greater than zero.
        """
        drift, every = non_negative_millis(max_drift, "max_drift"), positive_millis(update_interval, "update_interval")
        return replace(self, alignment=WatermarkAlignmentParams(group, drift, every))

    def with_interval(self, interval: Duration) -> WatermarkStrategy:
        """Emit at this interval of processing time; 0 turns periodic emission off.

        Raises:
            IllegalArgument: the interval is negative.
        """
        return replace(self, interval=non_negative_millis(interval, "interval"))

    @property
    def reads_events(self) -> bool:
        """Whether its generators must see every event; of the built-in ones the largest timestamp tells all."""
        return self._generator is None or self._generator.reads_events

    @property
    def moves_by_clock(self) -> bool:
        """Whether watermarks may move while no event comes: by idleness, or as generators advance by themselves."""
        return self.idle_timeout is not None or self._generator is None or self._generator.moves_by_clock

    @property
    def _generator(self) -> WatermarkGenerator | None:
        """A generator to ask; None if a user's supplier makes them, which may do more than that."""
        return self.supplier() if isinstance(self.supplier, _BuiltIn) else None

    def create_generator(self, clock: Clock) -> WatermarkGenerator:
        """A new generator, with idleness if that was asked for.

        Args:
            clock: processing time, int64 epoch milliseconds.

        Raises:
            IllegalArgument: the supplier made something else.
        """
        generator = self.supplier()
        if not isinstance(generator, WatermarkGenerator):
            raise IllegalArgument("supplier", self.supplier, f"it made {generator!r}, not a WatermarkGenerator")
        if self.idle_timeout is None:
            return generator
        return WatermarksWithIdleness(generator, self.idle_timeout, clock)

    def create_timestamp_assigner(self) -> TimestampAssigner:
        """What gives elements their timestamps."""
        return self.timestamp_assigner or _record_timestamp

    def __repr__(self) -> str:
        made = self.supplier if isinstance(self.supplier, _BuiltIn) else f"for_generator({self.supplier!r})"
        parts = [f"WatermarkStrategy.{made}"]
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
