"""Time to live: a state that was not touched for so long, in processing time, is gone.

Source: Flink's `StateTtlConfig`. Time in which nothing ran counts: the clock is the job's. A snapshot leaves out
what has expired (`tidegate.windowing.state.descriptors.without_expired`), as Flink's clean-up in full snapshots does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tidegate.windowing.time import Millis, positive_millis


class UpdateType(Enum):
    """What renews the time to live."""

    ON_CREATE_AND_WRITE = "on_create_and_write"
    ON_READ_AND_WRITE = "on_read_and_write"


@dataclass(frozen=True, slots=True)
class StateTtlConfig:
    """How long a state lives, and what renews it.

    Args:
        ttl: a timedelta, or int milliseconds, of processing time.
        update: whether reads renew it too.
        return_expired: whether an expired value may be read until a snapshot leaves it out.

    Raises:
        IllegalArgument: the time is not greater than zero.
    """

    ttl: Millis
    update: UpdateType = UpdateType.ON_CREATE_AND_WRITE
    return_expired: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "ttl", positive_millis(self.ttl, "ttl"))


class StateTtl:
    """A time-to-live rule at work: raw values are `{"value": …, "at": last touched}`."""

    __slots__ = ("_clock", "_config", "_millis")

    def __init__(self, config: StateTtlConfig, clock: Callable[[], Millis]) -> None:
        self._config, self._clock = config, clock
        self._millis = config.ttl

    @classmethod
    def of(cls, config: StateTtlConfig | None, clock: Callable[[], Millis]) -> StateTtl | None:
        """The rule, or None where state lives for ever."""
        return None if config is None else cls(config, clock)

    def write(self, value: Any) -> dict[str, Any]:
        """The raw value to keep."""
        return {"value": value, "at": self._clock()}

    def read(self, raw: dict[str, Any]) -> Any:
        """The value, or None once it has expired."""
        if not self._config.return_expired and self.is_expired(raw):
            return None
        if self._config.update is UpdateType.ON_READ_AND_WRITE:
            raw["at"] = self._clock()
        return raw["value"]

    def is_expired(self, raw: dict[str, Any]) -> bool:
        """Whether the time to live of a raw value has passed."""
        return bool(raw["at"] + self._millis <= self._clock())

    def read_all(self, raws: Iterable[dict[str, Any]]) -> list[Any]:
        """The values of a list that have not expired."""
        return [value for raw in raws if (value := self.read(raw)) is not None]
