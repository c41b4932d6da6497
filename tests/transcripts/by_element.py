"""The columnar operator element by element, so that harness and transcripts can drive it like any operator. Each
element is a source commit of its own, so that late panes fire as in Flink. Every step takes the state as rows and
returns it as rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

import numpy as np
import pyarrow as pa

from tidegate.windowing.columnar import ColumnarOperator
from tidegate.windowing.columnar.plan import early_interval
from tidegate.windowing.compute import Windows
from tidegate.windowing.epochs import Elements, EpochOutcome, Timeline
from tidegate.windowing.errors import MissingTimestamp
from tidegate.windowing.keys import DEFAULT_MAX_PARALLELISM, KeySchema
from tidegate.windowing.operators.counters import Counters
from tidegate.windowing.operators.protocol import KeyedOperator
from tidegate.windowing.operators.records import LateElement, Record, WatermarkRecord, WindowResult
from tidegate.windowing.operators.window import WindowOperator
from tidegate.windowing.operators.window.snapshot import state_schema
from tidegate.windowing.panes import PanePolicy, Timing
from tidegate.windowing.state.rows import StateRow
from tidegate.windowing.testing.harness import OperatorHarness
from tidegate.windowing.time import MIN_TIMESTAMP, Millis
from tidegate.windowing.timers import InternalTimerService
from tidegate.windowing.windows import TimeWindow


class ColumnarByElement:
    """A keyed operator around the columnar one.

    Args:
        windows: what to compute, with aggregates bound to `values`.
        key: the key columns.
        values: the columns of the elements, which are mappings.
        panes: see `WindowOperator`.
        late_output: see `WindowOperator`.
    """

    def __init__(
        self, windows: Windows, key: KeySchema, values: pa.Schema, panes: PanePolicy, late_output: bool
    ) -> None:
        self.counters = Counters()
        self._windows, self._key, self._values, self._panes = windows, key, values, panes
        self._schema = state_schema(windows, key, None, panes)
        self._operator = ColumnarOperator(
            windows, self._schema, panes, DEFAULT_MAX_PARALLELISM, late_output=late_output, account_for_all=False
        )
        self._state = self._schema.to_table([], DEFAULT_MAX_PARALLELISM)
        self._watermark: Millis = MIN_TIMESTAMP
        self._clock: Millis = 0
        self.output: list[Record] = []

    def process_element(self, key: Any, value: Any, timestamp: Millis | None, side: str | None = None) -> None:
        """Take in one element."""
        if timestamp is None:
            raise MissingTimestamp
        outcome = self._run([(key, value, timestamp)], [(self._watermark, False)])
        if any(row.late_firing for row in self.state_rows()):
            # A late element fires immediately; timers wait for the next watermark.
            self._run([], [(self._watermark, True)])
        for late in outcome.late.to_pylist():
            start, end = late["window_start"], late["window_end"]
            window = None if start is None else TimeWindow(start, end)
            self.output.append(LateElement(key, value, timestamp, late["reason"], window, late["watermark"]))

    def process_watermark(self, watermark: Millis, side: str | None = None) -> None:
        """Advance event time, never back, and fire what is due."""
        self._run([], [(watermark, True)])
        self._watermark = max(self._watermark, watermark)
        self.output.append(WatermarkRecord(self._watermark))

    def process_processing_time(self, clock: Millis, within: bool = False) -> None:
        """Advance the clock, never back."""
        self._clock = max(self._clock, clock)

    def end_commit(self) -> None:
        """Nothing is left to do, because every element is a commit of its own."""

    def take_output(self) -> list[Record]:
        """Return the output since the last call."""
        records, self.output = self.output, []
        return records

    def state_rows(self) -> Iterator[StateRow]:
        """Return everything that the operator remembers."""
        return self._schema.from_table(self._state)

    def restore_state(self, rows: Iterable[StateRow]) -> None:
        """Load rows; the operator must be new."""
        self._state = self._schema.to_table(rows, DEFAULT_MAX_PARALLELISM)

    def restore_time(self, watermark: Millis, processing_time: Millis) -> None:
        """Set both clocks without firing."""
        self._watermark, self._clock = watermark, processing_time

    @property
    def timers(self) -> InternalTimerService:
        """Return timers and clocks, as the row operator would hold them."""
        return self._by_row().timers

    @property
    def next_event_time(self) -> Millis | None:
        """Return the time of the next event-time timer, as the row operator would have it."""
        return self._by_row().next_event_time

    def num_state_entries(self) -> int:
        """Number of non-empty state cells, as the row operator counts them."""
        return self._by_row().num_state_entries()

    def _by_row(self) -> WindowOperator:
        """Return the row operator with this state, which also proves that it can take over the state."""
        operator = WindowOperator(self._windows, panes=self._panes)
        operator.restore_time(self._watermark, self._clock)
        operator.restore_state(self.state_rows())
        return operator

    def _run(self, elements: list[tuple[Any, Any, Millis]], commits: list[tuple[Millis, bool]]) -> EpochOutcome:
        keys = [self._key.columns_of(key) for key, _, _ in elements]
        due = {(row.key, row.window): row.event_time_timers for row in self.state_rows()}
        outcome = self._operator.run(
            Elements(
                timestamps=np.array([timestamp for _, _, timestamp in elements], np.int64),
                commits=np.zeros(len(elements), np.int64),
                keys={
                    name: pa.array([key[i] for key in keys], kind)
                    for i, (name, kind) in enumerate(zip(self._key.names, self._key.types, strict=True))
                },
                columns={
                    field.name: pa.array([value[field.name] for _, value, _ in elements], field.type)
                    for field in self._values
                },
            ),
            self._state,
            Timeline.of_commits(self._watermark, commits, clock=self._clock),
        )
        self._state = outcome.state
        self.counters.late_dropped += outcome.counters.late_dropped
        results = [self._result(row) for row in outcome.panes.to_pylist()]
        interval = early_interval(self._windows) or 0
        for i, result in enumerate(results):
            if result.timing is Timing.EARLY:
                # The first timer of a window is the one that it had; the others follow at intervals.
                timers = due[result.key, result.window]
                results[i] = result._replace(timer=timers[0])
                due[result.key, result.window] = [timers[0] + interval, *timers]
        # Tables have no order: timers fire by time, and an element fires its latest window first.
        results.sort(key=lambda result: (MIN_TIMESTAMP if result.timer is None else result.timer, -result.timestamp))
        self.output.extend(results)
        return outcome

    def _result(self, row: dict[str, Any]) -> WindowResult:
        window, timing = TimeWindow(row["window_start"], row["window_end"]), Timing(row["timing"])
        return WindowResult(
            self._key.key_of([row[f"key_{name}"] for name in self._key.names]),
            window,
            {name.removeprefix("value_"): value for name, value in row.items() if name.startswith("value_")},
            window.max_timestamp,
            window.max_timestamp if timing is Timing.ON_TIME and row["op"] == "+" else None,
            window,
            row["pane"],
            timing,
            row["op"],
            row["watermark"],
        )


def columnar_harness(
    windows: Windows, *, key: KeySchema, values: pa.Schema, panes: PanePolicy | None = None, late_output: bool = True
) -> OperatorHarness:
    """A harness around the columnar operator, fed element by element.

    Args:
        windows: what to compute, with aggregates bound to `values`.
        key: the key columns.
        values: the columns of the elements, which are mappings.
        panes: see `WindowOperator`.
        late_output: see `WindowOperator`.
    """
    policy = panes or PanePolicy(accumulation=windows.accumulation)
    return OperatorHarness(
        lambda: cast("KeyedOperator", ColumnarByElement(windows, key, values, policy, late_output)),
        lambda schema: state_schema(windows, schema, None, policy),
        key,
    )
