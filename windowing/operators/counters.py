"""What an operator counts, so that nothing disappears silently.

elements in = on time + late + no_window; a pipeline adds rejected rows to the right-hand side.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields

from tidegate.windowing.panes import Timing
from tidegate.windowing.timers import InternalTimerService


@dataclass(slots=True)
class Counters:
    """Counts since the operator was made. Counts add up over shards and epochs.

    on_time counts every element that a window took, within its lateness too, and every one that a
    process function got or that waits for the watermark; no_window those that their assigner put
    nowhere while they were not late. `fed` counts those that waited and then went to their function.
    never_emitted counts, of those that windows took, the elements that no pane had shown when their
    window went away or was emptied; one that is in several windows counts in each.
    """

    elements: int = 0
    late: int = 0
    late_dropped: int = 0
    no_window: int = 0
    fired: dict[Timing, int] = field(default_factory=lambda: dict.fromkeys(Timing, 0))
    withdrawn: int = 0
    timers_registered: int = 0
    timers_fired: int = 0
    timers_deleted: int = 0
    open_windows: int = 0
    never_emitted: int = 0
    fed: int = 0

    def count_timers(self, timers: InternalTimerService) -> Counters:
        """These counters, with what the queues of both domains have counted."""
        queues = timers.event_time, timers.processing_time
        self.timers_registered = sum(queue.added for queue in queues)
        self.timers_fired = sum(queue.fired for queue in queues)
        self.timers_deleted = sum(queue.deleted for queue in queues)
        return self

    def by_name(self) -> dict[str, int]:
        """What a pipeline keeps of them, by name."""
        counts = {counter.name: getattr(self, counter.name) for counter in fields(self)}
        by_timing = counts.pop("fired")
        # A pipeline puts every late element out.
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
        """Elements that were taken: by a window at least, or by a function."""
        return self.elements - self.late - self.no_window
