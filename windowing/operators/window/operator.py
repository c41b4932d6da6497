"""The window operator, one element at a time: any assigner, trigger, evictor and function.

It is the reference that the columnar operator must equal. `process_element` processes elements, `process_watermark`
advances event time, `process_processing_time` advances the clock; records go to `output`. Source: Flink's
`WindowOperator` and `EvictingWindowOperator`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tidegate.windowing.assigners import WindowAssigner
from tidegate.windowing.assigners.base import draw_stagger
from tidegate.windowing.compute import Windows
from tidegate.windowing.errors import UnsupportedOperation
from tidegate.windowing.functions import ProcessWindowFunction
from tidegate.windowing.lateness import is_late
from tidegate.windowing.merging import Addition, MergingWindowSet
from tidegate.windowing.operators.counters import Counters
from tidegate.windowing.operators.protocol import KeyedOperator
from tidegate.windowing.operators.records import LATE, MERGED_WINDOW_LATE, WINDOWS_PASSED, LateElement, WatermarkRecord
from tidegate.windowing.operators.window.cleanup import Cleanup, WindowCell
from tidegate.windowing.operators.window.contents import contents_of
from tidegate.windowing.operators.window.contexts import WindowFunctionContext, WindowTriggerContext
from tidegate.windowing.operators.window.firing import Firing
from tidegate.windowing.operators.window.snapshot import from_rows, to_rows
from tidegate.windowing.panes import Accumulation, PanePolicy
from tidegate.windowing.state.rows import StateRow
from tidegate.windowing.time import MAX_TIMESTAMP, Millis
from tidegate.windowing.timers import Slot
from tidegate.windowing.triggers import TriggerResult
from tidegate.windowing.windows import TimeWindow, Window, check_window

CONTINUE = TriggerResult.CONTINUE


class WindowOperator(KeyedOperator):
    """Windows of keyed elements, in event time and in processing time.

    Args:
        windows: the computation, with a bound aggregate.
        panes: pane policies beyond Flink's plain firing.
        late_output: True emits late elements; False only counts them, as `late_dropped`.
        account_for_all: True also emits, as late, the elements for which Flink raises an error or which it drops
            silently: those whose merge would end a window in the past, and those that are not late themselves although
            all their windows are. A window that the clock has already passed is not opened again either.
        check_times: True refuses windows and timers of user code outside the range of times, which tables can't hold;
            False takes every int64, as Flink does.
    """

    def __init__(
        self,
        windows: Windows,
        *,
        panes: PanePolicy | None = None,
        late_output: bool = True,
        account_for_all: bool = False,
        check_times: bool = False,
    ) -> None:
        super().__init__()
        self.windows = windows
        self.panes = panes or PanePolicy(accumulation=windows.accumulation)
        self.cells: dict[Slot, WindowCell] = {}
        self.merging_sets: dict[Any, MergingWindowSet] = {}
        self.global_cells: dict[Any, dict[str, Any]] = {}
        self.late_firings: dict[Slot, None] = {}
        self.assigner = windows.assigner
        self._assign = windows.assigner.assign_windows
        self._may_draw_stagger = True
        self.merging = windows.assigner.merges
        self._checks_windows = check_times and windows.assigner.longest_window is None
        self._event_time = windows.assigner.is_event_time
        self._ends_by_clock = windows.ends_by_clock
        self._lateness = windows.lateness
        self._closed_through = self.panes.closed_through
        self._trigger = windows.effective_trigger
        self.cleanup = Cleanup(self._trigger, self.timers, self._lateness, self._event_time)
        self._late_output, self._account_for_all = late_output, account_for_all
        self._contents = contents_of(windows)
        self._add = self._contents.add
        self._context = WindowTriggerContext(self.timers, self.cleanup, self._trigger if check_times else None)
        self._function = windows.process if isinstance(windows.process, ProcessWindowFunction) else None
        self._function_context = (
            None
            if self._function is None
            else WindowFunctionContext(
                self._function, self._context, self.global_cells, self.merging, self.output.append
            )
        )
        self._firing = Firing(
            self, self._context, self._counters, self._contents, self._function, self._function_context
        )
        self._counts_unseen = windows.may_lose_data
        self._coalesce = self.panes.coalesce_late and self._event_time
        self._discard = self.panes.accumulation is Accumulation.DISCARDING

    # --- input -------------------------------------------------------------------------------

    def process_element(self, key: Any, value: Any, timestamp: Millis | None, side: str | None = None) -> None:
        context = self._context
        self._counters.elements += 1
        if self._may_draw_stagger:
            self._draw_stagger()
        assigned = self._assign(value, timestamp, context)
        accepted, reason = False, LATE
        for window in assigned:
            if self._checks_windows:
                check_window(window, self.assigner)
            if self.merging:
                merged = self._merge(key, window)
                if merged is None:
                    reason = MERGED_WINDOW_LATE
                    continue
                window = merged
            cleanup = self.cleanup.time(window)
            slot = (key, window)
            cell = self.cells.get(slot)
            if self._is_window_late(window, cleanup, cell):
                if self.merging:
                    self._retire(key, window)
                continue
            accepted = True
            if cell is None:
                cell = self.cells[slot] = WindowCell()
            cell.contents = self._add(cell.contents, value, timestamp)
            if self._counts_unseen:
                cell.unseen += 1
            context.slot, context.cell = slot, cell
            result = self._trigger.on_element(value, timestamp, window, context)  # type: ignore[arg-type]
            if result is not CONTINUE:
                if self._coalesce and result.is_fire and window.max_timestamp <= context.current_watermark:
                    cell.late_firing = bool(cell.late_firing) or result.is_purge
                    self.late_firings[slot] = None
                else:
                    self._act(slot, cell, result, None)
            if cleanup != MAX_TIMESTAMP:
                self.cleanup.timers.add(cleanup, slot)
        if not accepted:
            self._skip(key, value, timestamp, reason, assigned[0] if assigned else None)

    def process_watermark(self, watermark: Millis, side: str | None = None) -> None:
        context = self._context
        context.current_watermark = max(context.current_watermark, watermark)
        self.timers.advance_watermark(watermark)
        self.output.append(WatermarkRecord(context.current_watermark))

    def process_processing_time(self, clock: Millis, within: bool = False) -> None:
        self._context.current_processing_time = max(self._context.current_processing_time, clock)
        self.timers.advance_processing_time(clock, within and self._ends_by_clock)

    def end_commit(self) -> None:
        """End the source commit: fire once each window that late elements of the commit changed."""
        firings, self.late_firings = self.late_firings, {}
        for slot in firings:
            cell = self.cells.get(slot)
            if cell is not None and cell.late_firing is not None:
                purge, cell.late_firing = cell.late_firing, None
                self._act(slot, cell, TriggerResult.of(fire=True, purge=purge), None)

    def _is_window_late(self, window: Window, cleanup: Millis, cell: WindowCell | None) -> bool:
        """Return True if a window no longer accepts elements. Source: Flink's `isWindowLate`.

        A closed window that has a cell was reopened.
        """
        if self._event_time:
            return cleanup <= self._context.current_watermark or (
                cell is None and window.max_timestamp <= self._closed_through
            )
        passed = self._account_for_all and self._ends_by_clock and cleanup < self._context.current_processing_time
        return cell is None and passed

    def _is_element_late(self, timestamp: Millis | None) -> bool:
        """Return True if an element that no window accepts is late by its own time. Source: Flink's `isElementLate`."""
        if not self._event_time or timestamp is None:
            return False
        return is_late(timestamp, self._lateness, self._context.current_watermark) or timestamp <= self._closed_through

    def _skip(self, key: Any, value: Any, timestamp: Millis | None, reason: str, window: Window | None) -> None:
        """Count an element that no window accepts, and emit it if it is late."""
        late = self._is_element_late(timestamp)
        if window is None and not late:
            self._counters.no_window += 1
            return
        self._counters.late += 1
        if not late and reason is LATE:
            reason = WINDOWS_PASSED
        if self._late_output and (late or self._account_for_all):
            self.output.append(LateElement(key, value, timestamp, reason, window, self._context.current_watermark))
        elif late:
            self._counters.late_dropped += 1

    # --- timers ------------------------------------------------------------------------------

    def on_event_time(self, time: Millis, slot: Slot) -> None:
        """Run the trigger's event-time timer, and clean up the window if it is due; the timer service calls this."""
        self._on_timer(time, slot, True)

    def on_processing_time(self, time: Millis, slot: Slot) -> None:
        """Run the trigger's processing-time timer, and clean up the window if due; the timer service calls this."""
        self._on_timer(time, slot, False)

    def _on_timer(self, time: Millis, slot: Slot, of_event_time: bool) -> None:
        if self.merging:
            merging_set = self.merging_sets.get(slot[0])
            if merging_set is None or slot[1] not in merging_set:
                return  # The window was merged into another.
        cell = self.cells.get(slot)
        if cell is None:
            # The window was cleaned up, but a timer of its trigger outlived it: its hook still runs.
            cell = WindowCell()
        context = self._context
        context.slot = slot
        context.cell = cell
        timers = self.timers.event_time if of_event_time else self.timers.processing_time
        if not self.cleanup.takes_alone(timers, time, slot):
            fire = self._trigger.on_event_time if of_event_time else self._trigger.on_processing_time
            result = fire(time, slot[1], context)
            if result is not CONTINUE:
                self._act(slot, cell, result, time, of_event_time)
        cleanup, cleans = self.cleanup.time(slot[1]), self._event_time is of_event_time
        if cleans and (time == cleanup or (time > cleanup and slot in self.cells and self.cleanup.is_due(cell))):
            self._clear_all(slot, cell)
        elif cell.trigger_state and slot not in self.cells:
            self.cells[slot] = cell

    # --- firing and cleaning -----------------------------------------------------------------

    def _act(
        self, slot: Slot, cell: WindowCell, result: TriggerResult, timer: Millis | None, event_timer: bool = False
    ) -> None:
        purge = result.is_purge
        if result.is_fire and cell.contents is not None:
            self.firing = slot
            self._firing.fire(slot, cell, timer, event_timer)
            self.firing = None
            cell.unseen = 0
            purge = purge or self._discard
        if purge:
            self._never_emitted(cell)
            self._firing.purge(cell)

    def _never_emitted(self, cell: WindowCell) -> None:
        """Count the elements of a cell that no pane has shown and none can show any more."""
        self._counters.never_emitted += cell.unseen
        cell.unseen = 0

    def _clear_all(self, slot: Slot, cell: WindowCell) -> None:
        cell.contents = None
        self._never_emitted(cell)
        context = self._context
        context.slot = slot
        context.cell = cell
        self._trigger.clear(slot[1], context)
        if self._function is not None and self._function_context is not None:
            self._function_context.slot, self._function_context.cell = slot, cell
            self._function.clear(self._function_context)
        self.cells.pop(slot, None)
        if self.merging:
            self._retire(*slot)

    # --- merging -----------------------------------------------------------------------------

    def _merge(self, key: Any, window: Window) -> TimeWindow | None:
        """Add a window to the key's windows in flight, merge cells, and return the window that contains it.

        Return None and change nothing if the merged window has passed.
        """
        if not isinstance(window, TimeWindow):
            raise UnsupportedOperation(f"a merging assigner returned {window!r}: only time windows can merge")
        merging_set = self.merging_sets.get(key)
        if merging_set is None:
            merging_set = self.merging_sets[key] = MergingWindowSet(self.assigner)  # type: ignore[arg-type]
        addition = merging_set.plan(window)
        if addition.merges:
            if self._merges_behind_time(addition):
                return None
            for merge in addition.merges:
                self._merge_cells(key, merge.result, merge.sources)
        merging_set.apply(addition)
        return addition.window

    def _merges_behind_time(self, addition: Addition) -> bool:
        now = self._context.current_watermark if self._event_time else self._context.current_processing_time
        if self._account_for_all and self._ends_by_clock:
            # A window is open until the clock has passed its last millisecond.
            now -= 1
        for merge in addition.merges:
            if is_late(merge.result.max_timestamp, self._lateness, now):
                if self._account_for_all:
                    return True
                clock = "watermark" if self._event_time else "processing time"
                raise UnsupportedOperation(
                    f"merging windows {[tuple(w) for w in merge.sources]} gives {tuple(merge.result)}, whose end is "
                    f"before the current {clock} ({now}): a merge must not end a window in the past"
                )
        return False

    def _merge_cells(self, key: Any, result: TimeWindow, sources: list[TimeWindow]) -> None:
        context = self._context
        # By start, not by state window, so that a restore can't change the order of contents.
        cells: list[tuple[TimeWindow, WindowCell]] = [
            (window, self.cells.pop((key, window), WindowCell())) for window in sources
        ]
        target = WindowCell()
        slot = (key, result)
        context.slot, context.cell = slot, target
        context.merged = [cell for _, cell in cells]
        self._trigger.on_merge(result, context)
        for window, cell in cells:
            context.slot, context.cell = (key, window), cell
            self._trigger.clear(window, context)
            self.cleanup.cancel(context.slot)
        self._firing.merge(slot, target, cells)
        self.cells[slot] = target

    def _retire(self, key: Any, window: Window) -> None:
        merging_set = self.merging_sets[key]
        merging_set.retire(window)
        if not merging_set:
            del self.merging_sets[key]

    # --- state -------------------------------------------------------------------------------

    @property
    def current_watermark(self) -> Millis:
        """The watermark."""
        return self._context.current_watermark

    @property
    def current_processing_time(self) -> Millis:
        """The clock."""
        return self._context.current_processing_time

    @property
    def counters(self) -> Counters:
        """Counts since the operator was created, timers and open windows included."""
        counters = super().counters
        counters.open_windows = len(self.cells)
        return counters

    @property
    def stagger_offset(self) -> Millis | None:
        """Offset by which windows are staggered, milliseconds; None until it is chosen for the first element."""
        return self.assigner.stagger_offset

    def restore_stagger(self, offset: Millis | None) -> None:
        """Restore an offset that was chosen earlier, so that windows keep their bounds; None changes nothing."""
        if offset is not None and self._may_draw_stagger:
            self._set_assigner(self.assigner.with_stagger(offset))

    def state_rows(self) -> Iterator[StateRow]:
        return to_rows(self)

    def restore_state(self, rows: Iterable[StateRow]) -> None:
        from_rows(self, rows)

    def restore_time(self, watermark: Millis, processing_time: Millis) -> None:
        super().restore_time(watermark, processing_time)
        self._context.current_watermark, self._context.current_processing_time = watermark, processing_time

    def num_state_entries(self) -> int:
        """Return the number of non-empty state cells: contents, trigger and function state, merging sets."""
        cells = sum(
            (cell.contents is not None) + len(cell.trigger_state or ()) + len(cell.function_state or ())
            for cell in self.cells.values()
        )
        return cells + len(self.merging_sets) + sum(len(cell) for cell in self.global_cells.values())

    def _draw_stagger(self) -> None:
        self._set_assigner(draw_stagger(self.assigner, self._context.current_processing_time))

    def _set_assigner(self, assigner: WindowAssigner) -> None:
        self.assigner = assigner
        self._assign = assigner.assign_windows
        self._may_draw_stagger = False
