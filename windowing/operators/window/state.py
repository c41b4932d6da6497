"""The interface to a window operator's state, for firing and snapshots."""

from __future__ import annotations

from typing import Any, Protocol

from tidegate.windowing.assigners import WindowAssigner
from tidegate.windowing.compute import Windows
from tidegate.windowing.merging import MergingWindowSet
from tidegate.windowing.operators.records import Record
from tidegate.windowing.operators.window.cells import WindowCell
from tidegate.windowing.operators.window.cleanup import Cleanup
from tidegate.windowing.panes import PanePolicy
from tidegate.windowing.time import Millis
from tidegate.windowing.timers import InternalTimerService, Slot


class WindowOperatorState(Protocol):
    """Configuration and state of a window operator.

    Attributes:
        windows: the computation, with a bound aggregate.
        panes: pane policies beyond Flink's plain firing.
        assigner: assigner of the windows, with its stagger drawn.
        merging: True if windows merge.
        cleanup: the cleanup times of windows.
        timers: timers of triggers and cleanup.
        cells: the contents of each key and window.
        merging_sets: the windows in flight of each key, where windows merge.
        global_cells: the state of functions for each key, independent of windows.
        late_firings: cells that fire when their commit ends.
        output: records since the last `take_output`.
    """

    windows: Windows
    panes: PanePolicy
    assigner: WindowAssigner
    merging: bool
    cleanup: Cleanup
    timers: InternalTimerService
    cells: dict[Slot, WindowCell]
    merging_sets: dict[Any, MergingWindowSet]
    global_cells: dict[Any, dict[str, Any]]
    late_firings: dict[Slot, None]
    output: list[Record]

    @property
    def current_processing_time(self) -> Millis:
        """The clock, int64 epoch milliseconds."""
