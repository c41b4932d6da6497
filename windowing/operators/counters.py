"""Counters of an operator, which account for every element.

elements in = on time + late + no_window; a pipeline adds rejected rows to the right-hand side.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields

from tidegate.windowing.panes import Timing


@dataclass(slots=True)
class Counters:
    """Counts since the operator was created. Counts add up over shards and epochs.

    `on_time` counts the elements that a window accepted, even within its allowed lateness, and those that a process
    function received or that wait for the watermark. `no_window` counts the elements that are not late and that their
    assigner put into no window. `fed` counts the elements that waited and were then passed to their function.
    `never_emitted` counts the elements that a window accepted but no pane had shown when the window was cleaned up or
    emptied; an element in several windows counts in each.
    """

    elements: int = 0
    late: int = 0
    late_dropped: int = 0
    no_window: int = 0
    fired: dict[Timing, int] = field(default_factory=lambda: dict.fromkeys(Timing, 0))
    retracted: int = 0
    timers_registered: int = 0
    timers_fired: int = 0
    timers_deleted: int = 0
    open_windows: int = 0
    never_emitted: int = 0
    fed: int = 0

    def by_name(self) -> dict[str, int]:
        """Return the counts that a pipeline records, by name."""
        counts = {counter.name: getattr(self, counter.name) for counter in fields(self)}
        by_timing = counts.pop("fired")
        # A pipeline emits every late element, so it drops none.
        del counts["late_dropped"]
        return counts | {"on_time": self.on_time} | {f"fired_{timing.value}": by_timing[timing] for timing in Timing}

    @classmethod
    def total(cls, parts: Iterable[Counters]) -> Counters:
        """Return the sum of counters, name by name."""
        total = cls()
        for part in parts:
            for counter in fields(cls):
                count = getattr(part, counter.name)
                if isinstance(count, dict):
                    for timing, fired in count.items():
                        total.fired[timing] += fired
                else:
                    setattr(total, counter.name, getattr(total, counter.name) + count)
        return total

    @property
    def on_time(self) -> int:
        """Number of elements that at least one window, or a function, accepted."""
        return self.elements - self.late - self.no_window
