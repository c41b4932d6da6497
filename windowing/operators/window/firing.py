"""Firing, purging and merging of windows: evictors, functions, panes, retractions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidegate.windowing.declared import row_checker
from tidegate.windowing.functions import ProcessWindowFunction
from tidegate.windowing.operators.counters import Counters
from tidegate.windowing.operators.records import WindowResult
from tidegate.windowing.operators.window.cleanup import WindowCell
from tidegate.windowing.operators.window.contents import Contents
from tidegate.windowing.operators.window.contexts import (
    WindowFunctionContext,
    WindowOperatorState,
    WindowTriggerContext,
)
from tidegate.windowing.panes import Accumulation, EmittedPane, Timing
from tidegate.windowing.time import MAX_TIMESTAMP, Millis
from tidegate.windowing.timers import Slot
from tidegate.windowing.windows import Window

_new = tuple.__new__


class Firing:
    """Turns the contents of cells into results of one window operator."""

    def __init__(
        self,
        operator: WindowOperatorState,
        context: WindowTriggerContext,
        counters: Counters,
        contents: Contents,
        function: ProcessWindowFunction | None,
        function_context: WindowFunctionContext | None,
    ) -> None:
        windows, panes = operator.windows, operator.panes
        self._operator = operator
        self._context = context
        self._contents = contents
        self._function = function
        self._function_context = function_context
        self._fit = row_checker(None if function is None else function.result_type, function)
        self._evictor = windows.evictor
        self._event_time = windows.assigner.is_event_time
        self._accumulation = panes.accumulation
        self._retract = panes.accumulation is Accumulation.RETRACTING
        self._retract_merged = panes.retract_merged and operator.merging
        self._keeps_panes = panes.keeps_panes(operator.merging)
        self._plain = windows.evictor is None and function is None
        self._output = operator.output
        self._counters = counters
        self._fired = counters.fired

    def fire(self, slot: Slot, cell: WindowCell, timer: Millis | None, event_timer: bool) -> None:
        """Emit a pane with the contents of a cell, after retracting the panes that it replaces."""
        key, window = slot
        plain = self._plain and cell.missing is None
        values = self._contents.values(cell.contents) if plain else self._results(slot, cell)
        identity = cell.identity or window
        is_late = False
        if cell.emitted:
            # A merge may set a timer at an end that has passed; then the firing is late.
            is_late = any(pane.timing is Timing.LATE and pane.window == window for pane in cell.emitted)
            self._retract_panes(key, cell, lambda pane: self._retract or _replaced(pane, window, identity))
        if not values:
            return
        cell.identity = identity
        end = window.max_timestamp
        timing = Timing.LATE if is_late else self._timing(end, timer, event_timer)
        pane, watermark = cell.pane, self._context.current_watermark
        for value in values:
            self._output.append(
                # The same as WindowResult(...), which takes twice as long; every result is created here.
                _new(WindowResult, (key, window, value, end, timer, identity, pane, timing, "+", watermark))
            )
        self._fired[timing] += 1
        if self._keeps_panes:
            panes = [EmittedPane(identity, window, pane, timing, value) for value in values]
            if self._accumulation is Accumulation.DISCARDING and cell.emitted:
                panes = cell.emitted + panes
            cell.emitted = panes
        cell.pane = pane + 1

    def purge(self, cell: WindowCell) -> None:
        """Empty a cell; in discarding mode keep contents that a retraction may restore."""
        if self._retract_merged and self._accumulation is Accumulation.DISCARDING:
            cell.discarded = self._both(cell.discarded, cell.contents)
        cell.contents = None

    def merge(self, slot: Slot, target: WindowCell, cells: Sequence[tuple[Window, WindowCell]]) -> None:
        """Move contents and panes of merged windows into the cell of the merged window."""
        key, window = slot
        for _, cell in cells:
            target.contents = self._both(target.contents, cell.contents)
            target.discarded = self._both(target.discarded, cell.discarded)
            target.pane = max(target.pane, cell.pane)
            target.unseen += cell.unseen
            if cell.identity is not None:
                target.identity = cell.identity if target.identity is None else min(target.identity, cell.identity)
            if cell.missing:
                target.missing = (target.missing or frozenset()) | cell.missing
            if cell.emitted:
                target.emitted = (target.emitted or []) + cell.emitted
            if cell.late_firing is not None and window.max_timestamp <= self._context.current_watermark:
                target.late_firing = bool(target.late_firing) or cell.late_firing
                self._operator.late_firings[slot] = None
        if target.emitted:
            # The next firing retracts these panes, so it must count their contents again.
            target.contents = self._both(target.discarded, target.contents)
            target.discarded = None
            # A pane must not look final while its window is still open, so it is retracted immediately.
            cleanup = self._operator.cleanup
            self._retract_panes(key, target, lambda pane: cleanup.time(pane.window) < window.max_timestamp)

    def _results(self, slot: Slot, cell: WindowCell) -> Sequence[Any]:
        contents = cell.contents
        evictor = self._evictor
        if evictor is None:
            return self._apply(slot, cell, _without(cell.missing, self._contents.values(contents)))
        window: Window = slot[1]
        kept = evictor.evict_before(contents, window, self._context)
        results = self._apply(slot, cell, self._contents.values(kept))
        cell.contents = evictor.evict_after(kept, window, self._context) or None
        return results

    def _apply(self, slot: Slot, cell: WindowCell, values: Sequence[Any]) -> Sequence[Any]:
        function, context = self._function, self._function_context
        if function is None or context is None:
            return values
        context.slot, context.cell = slot, cell
        return [self._fit(result) for result in function.process(slot[0], context, values)]

    def _timing(self, end: Millis, timer: Millis | None, event_timer: bool) -> Timing:
        """Return a pane's timing by the time of the timer that fired, or else by the clock of the window's domain."""
        if timer is not None and event_timer == (self._event_time or end == MAX_TIMESTAMP):
            return Timing.EARLY if timer < end else Timing.ON_TIME if timer == end else Timing.LATE
        if self._event_time:
            return Timing.EARLY if self._context.current_watermark < end else Timing.LATE
        # The clock's current millisecond still belongs to the window, whose end fires after it.
        return Timing.EARLY if self._context.current_processing_time <= end else Timing.LATE

    def _retract_panes(self, key: Any, cell: WindowCell, which: Any) -> None:
        kept: list[EmittedPane] = []
        watermark = self._context.current_watermark
        for pane in cell.emitted or ():
            if not which(pane):
                kept.append(pane)
                continue
            self._operator.output.append(
                WindowResult(
                    key,
                    pane.window,
                    pane.value,
                    pane.window.max_timestamp,
                    None,
                    pane.identity,
                    pane.pane,
                    pane.timing,
                    "-",
                    watermark,
                )
            )
            self._counters.retracted += 1
        cell.emitted = kept or None

    def _both(self, contents: Any, other: Any) -> Any:
        if contents is None:
            return other
        return contents if other is None else self._contents.merge(contents, other)


def _replaced(pane: EmittedPane, window: Window, identity: Window) -> bool:
    return pane.window != window or pane.identity != identity


def _without(missing: frozenset[str] | None, values: Sequence[Any]) -> Sequence[Any]:
    """Return results in which the aggregates that were added after the window opened are null."""
    return values if missing is None else [{**value, **dict.fromkeys(missing)} for value in values]
