"""Event time of an operator with two inputs: the smaller of the watermarks of its active inputs.

Source: Flink's `AbstractStreamOperator.processWatermark1` and `processWatermarkStatus1`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.operators.records import IdleRecord, Record, WatermarkRecord
from tidegate.windowing.time import Millis
from tidegate.windowing.watermarks.combined import CombinedWatermark
from tidegate.windowing.watermarks.snapshot import WatermarkSnapshot

LEFT = "left"
RIGHT = "right"
SIDES = (LEFT, RIGHT)


@runtime_checkable
class TwoInputOperator(Protocol):
    """The methods that an operator with two inputs has in addition to `KeyedOperator`."""

    def process_idle(self, idle: bool, side: str | None = None) -> None:
        """Mark an input, or both if `side` is None, as idle or active."""

    def snapshot_inputs(self) -> WatermarkSnapshot:
        """Return watermark and status of each input, as plain JSON values."""

    def restore_inputs(self, snapshot: WatermarkSnapshot) -> None:
        """Restore a value of `snapshot_inputs`, after `restore_time`."""


def checked_side(side: str | None) -> str:
    """Return `side` if it names an input.

    Raises:
        IllegalArgument: `side` is neither `left` nor `right`.
    """
    if side not in SIDES:
        raise IllegalArgument("side", side, f"give the input: {LEFT!r} or {RIGHT!r}")
    return side


def value_column(side: str, name: str) -> str:
    """Return the name of an input's column in a table of both; Spark would read a dot as access to a field.

    >>> value_column("left", "amount")
    'left:amount'
    """
    return f"{side}:{name}"


def side_of_column(name: str) -> tuple[str, str]:
    """Return the input and column whose `value_column` has this name."""
    side, _, column = name.partition(":")
    return side, column


class TwoInputs:
    """Watermarks and status of two inputs, in front of an operator's event time.

    Args:
        advance: moves event time to the combined watermark.
        output: list that takes each watermark after the records it caused, and each change of status.
    """

    def __init__(self, advance: Callable[[Millis], None], output: list[Record]) -> None:
        self._advance = advance
        self._output = output
        self._combined = CombinedWatermark(SIDES)

    def watermark(self, watermark: Millis, side: str | None) -> None:
        """Advance the watermark of one input (of both if `side` is None), and make it active."""
        for name in SIDES if side is None else (checked_side(side),):
            self._combined[name].advance(watermark)
        self._update()

    def idle(self, idle: bool, side: str | None) -> None:
        """Set the status of one input (of both if `side` is None)."""
        for name in SIDES if side is None else (checked_side(side),):
            self._combined[name].idle = idle
        self._update()

    def start_at(self, watermark: Millis) -> None:
        """Set both inputs active at a watermark, without firing; a later `restore` may replace this."""
        self._combined = CombinedWatermark(SIDES)
        for name in SIDES:
            self._combined[name].advance(watermark)
        self._combined.update()

    def snapshot(self) -> WatermarkSnapshot:
        """Return watermark and status of each input, as plain JSON values."""
        return self._combined.snapshot()

    def restore(self, snapshot: WatermarkSnapshot) -> None:
        """Restore a value of `snapshot`."""
        self._combined.restore(snapshot)

    def _update(self) -> None:
        was_idle = self._combined.idle
        moved = self._combined.update()
        if was_idle and not self._combined.idle:
            self._output.append(IdleRecord(False))
        if moved:
            self._advance(self._combined.watermark)
            self._output.append(WatermarkRecord(self._combined.watermark))
        if self._combined.idle and not was_idle:
            self._output.append(IdleRecord(True))
