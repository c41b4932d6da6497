"""Time to live: a state expires if it is not touched for a length of processing time.

Time during which no job runs counts too. A snapshot leaves out expired values
(`tidegate.windowing.state.descriptors.without_expired`), as Flink's cleanup in full snapshots does. Source: Flink's
`StateTtlConfig`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tidegate.windowing.time import Millis, positive_millis


class UpdateType(Enum):
    """Operations that renew the time to live."""

    ON_CREATE_AND_WRITE = "on_create_and_write"
    ON_READ_AND_WRITE = "on_read_and_write"


@dataclass(frozen=True, slots=True)
class StateTtlConfig:
    """Time to live of a state, and the operations that renew it.

    Args:
        ttl: processing time, a timedelta or int milliseconds.
        update: operations that renew it: writes only, or reads too.
        return_expired: True lets user code read an expired value until a snapshot leaves it out.

    Raises:
        IllegalArgument: the time is not greater than zero.
    """

    ttl: Millis
    update: UpdateType = UpdateType.ON_CREATE_AND_WRITE
    return_expired: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "ttl", positive_millis(self.ttl, "ttl"))


class StateTtl:
    """A time-to-live rule with its clock. Raw values are `{"value": …, "at": time of the last renewal}`."""

    __slots__ = ("_clock", "_config", "_millis")

    def __init__(self, config: StateTtlConfig, clock: Callable[[], Millis]) -> None:
        self._config, self._clock = config, clock
        self._millis = config.ttl

    @classmethod
    def of(cls, config: StateTtlConfig | None, clock: Callable[[], Millis]) -> StateTtl | None:
        """Return the rule, or None for a state that never expires."""
        return None if config is None else cls(config, clock)

    def write(self, value: Any) -> dict[str, Any]:
        """Return the raw value to store."""
        return {"value": value, "at": self._clock()}

    def read(self, raw: dict[str, Any]) -> Any:
        """Return the value, or None if it has expired and expired values must not be read."""
        if not self._config.return_expired and self.is_expired(raw):
            return None
        if self._config.update is UpdateType.ON_READ_AND_WRITE:
            raw["at"] = self._clock()
        return raw["value"]

    def is_expired(self, raw: dict[str, Any]) -> bool:
        """Return True if the time to live of a raw value has passed."""
        return bool(raw["at"] + self._millis <= self._clock())

    def read_all(self, raws: Iterable[dict[str, Any]]) -> list[Any]:
        """Return the readable values of a list."""
        return [value for raw in raws if (value := self.read(raw)) is not None]
