"""One watermark of many inputs: the smallest of those that are not idle, and it never goes back.

Source: Flink 1.20's `CombinedWatermarkStatus`. When all inputs are idle it stays where it is; the
`StatusWatermarkValve` moves on to the largest there.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from tidegate.windowing.errors import IllegalArgument, IllegalState, IncompatibleSnapshot
from tidegate.windowing.time import MIN_TIMESTAMP, Millis
from tidegate.windowing.watermarks.snapshot import WatermarkSnapshot, flag_in, millis_in


class PartialWatermark:
    """Watermark and status of one input."""

    __slots__ = ("idle", "watermark")

    def __init__(self) -> None:
        self.watermark: Millis = MIN_TIMESTAMP
        self.idle = False

    def advance(self, watermark: Millis) -> bool:
        """Take a watermark, which makes the input active; whether it moved on."""
        self.idle = False
        if watermark <= self.watermark:
            return False
        self.watermark = watermark
        return True


class CombinedWatermark:
    """Watermarks of inputs by name, and what they combine to.

    Args:
        inputs: those that are there from the start.
    """

    def __init__(self, inputs: Iterable[Hashable] = ()) -> None:
        self._inputs: dict[Hashable, PartialWatermark] = {name: PartialWatermark() for name in inputs}
        self.watermark: Millis = MIN_TIMESTAMP
        self.idle = False

    def add(self, name: Hashable) -> None:
        """A new input, at the minimum: it holds the combined watermark where it is.

        Raises:
            IllegalState: there is one of this name.
        """
        if name in self._inputs:
            raise IllegalState(f"input {name!r} is registered already: unregister it first, or use another name")
        self._inputs[name] = PartialWatermark()

    def remove(self, name: Hashable) -> bool:
        """Forget an input; whether it was there. The next `update` no longer waits for it."""
        return self._inputs.pop(name, None) is not None

    def __getitem__(self, name: Hashable) -> PartialWatermark:
        found = self._inputs.get(name)
        if found is None:
            raise IllegalArgument("input", name, f"register it first; there are {sorted(map(repr, self._inputs))}")
        return found

    def update(self) -> bool:
        """Combine what the inputs say now; whether the combined watermark moved on."""
        if not self._inputs:
            return False
        active = [part.watermark for part in self._inputs.values() if not part.idle]
        self.idle = not active
        if not active or min(active) <= self.watermark:
            return False
        self.watermark = min(active)
        return True

    def snapshot(self) -> WatermarkSnapshot:
        """Everything, by input."""
        return {
            "watermark": self.watermark,
            "idle": self.idle,
            "inputs": [[name, part.watermark, part.idle] for name, part in self._inputs.items()],
        }

    def restore(self, snapshot: WatermarkSnapshot) -> None:
        """Take in what `snapshot` gave, inputs included.

        Raises:
            IncompatibleSnapshot: it is of something else.
        """
        watermark, idle, inputs = millis_in(snapshot, "watermark"), flag_in(snapshot, "idle"), snapshot.get("inputs")
        if not isinstance(inputs, list):
            raise IncompatibleSnapshot("inputs", inputs, "a list", "Restore what a combined watermark wrote")
        self.watermark, self.idle, self._inputs = watermark, idle, {}
        for name, part_watermark, part_idle in inputs:
            self._inputs[name] = part = PartialWatermark()
            part.watermark, part.idle = part_watermark, part_idle
