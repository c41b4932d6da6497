"""Harness for tests of operators: feed elements, advance time, take a snapshot, restore it at another parallelism.

The harness needs no Spark and reads no clock, because the test sets the time. Every snapshot is an Arrow table of state
rows, as in a pipeline.

For tests of watermark generators, it also has an output that records its calls, and a clock that the test sets.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tidegate.windowing.errors import IncompatibleSnapshot
from tidegate.windowing.keys import DEFAULT_MAX_PARALLELISM, KeySchema, key_group_range, subtask_of
from tidegate.windowing.operators.protocol import KeyedOperator
from tidegate.windowing.operators.records import (
    ElementResult,
    IdleRecord,
    LateElement,
    Record,
    SideOutput,
    WatermarkRecord,
    WindowResult,
)
from tidegate.windowing.operators.two_inputs import TwoInputOperator
from tidegate.windowing.operators.window import WindowOperator
from tidegate.windowing.state.migration import StateFormat, migrated
from tidegate.windowing.state.rows import StateSchema
from tidegate.windowing.time import MIN_TIMESTAMP, Millis
from tidegate.windowing.watermarks.snapshot import WatermarkSnapshot

_ANY_KEY = KeySchema(("key",), (pa.string(),))
"""Key schema of a harness before its first element or state row."""

MakeOperator = Callable[[], KeyedOperator]


@dataclass(frozen=True, slots=True)
class OperatorSnapshot:
    """State rows, with watermark and clock as of the snapshot.

    `format` describes the rows. `inputs` is None unless the operator has two inputs. `stagger_offset` is None unless
    the windows have a stagger that was chosen.
    """

    rows: pa.Table
    max_parallelism: int
    watermark: Millis
    processing_time: Millis
    format: StateFormat
    inputs: WatermarkSnapshot | None = None
    stagger_offset: Millis | None = None


@dataclass
class OperatorHarness:
    """Harness that runs an operator at any parallelism.

    Args:
        make: function that creates the operator of a subtask.
        schema: function from a key schema to the columns of the state rows.
        key: the key columns; None infers them from the first key.
        max_parallelism: number of key groups.

    Example:
        >>> from tidegate.windowing import Count, EventTimeSessionWindows, Windows
        >>> from tidegate.windowing.testing import window_harness
        >>> harness = window_harness(Windows(EventTimeSessionWindows.with_gap(10), aggregate={"n": Count()}))
        >>> harness.element("a", {}, 5)
        >>> harness.element("a", {}, 12)
        >>> harness.restore(harness.snapshot(), parallelism=3)
        >>> harness.watermark(21)
        >>> [(tuple(r.window), r.value) for r in harness.results()]
        [((5, 22), {'n': 2})]
    """

    make: MakeOperator
    schema: Callable[[KeySchema], StateSchema]
    key: KeySchema | None = None
    max_parallelism: int = DEFAULT_MAX_PARALLELISM
    subtasks: list[KeyedOperator] = field(default_factory=list)
    late_dropped_before: int = 0
    _records: list[Record] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._start(1)

    def element(self, key: Any, value: Any, timestamp: Millis | None, side: str | None = None) -> None:
        """Feed an element to the subtask that owns its key group."""
        if self.key is None:
            self.key = KeySchema.inferred(key)
        subtask = self.subtasks[
            subtask_of(self.key.key_group_of(key, self.max_parallelism), len(self.subtasks), self.max_parallelism)
        ]
        subtask.process_element(key, value, timestamp, side)
        self._share_stagger(subtask)
        self._collect(subtask)

    def end_commit(self) -> None:
        """End a source commit. Coalesced late panes are emitted now."""
        for subtask in self.subtasks:
            subtask.end_commit()
            self._collect(subtask)

    def watermark(self, watermark: Millis, side: str | None = None) -> None:
        """Advance event time in every subtask."""
        for subtask in self.subtasks:
            subtask.process_watermark(watermark, side)
            self._collect(subtask)

    def idle(self, side: str | None = None, idle: bool = True) -> None:
        """Change the status of an input, or of both if `side` is None, in every subtask with two inputs."""
        for subtask in self.subtasks:
            if isinstance(subtask, TwoInputOperator):
                subtask.process_idle(idle, side)
                self._collect(subtask)

    def processing_time(self, clock: Millis) -> None:
        """Advance processing time in every subtask."""
        for subtask in self.subtasks:
            subtask.process_processing_time(clock)
            self._collect(subtask)

    def snapshot(self) -> OperatorSnapshot:
        """Return the whole state of the operator, which does not change."""
        schema = self.schema(self.key or _ANY_KEY)
        rows = [row for subtask in self.subtasks for row in subtask.state_rows()]
        first = self.subtasks[0]
        return OperatorSnapshot(
            schema.to_table(rows, self.max_parallelism),
            self.max_parallelism,
            max(subtask.timers.current_watermark for subtask in self.subtasks),
            max(subtask.timers.current_processing_time for subtask in self.subtasks),
            StateFormat.of(schema),
            first.snapshot_inputs() if isinstance(first, TwoInputOperator) else None,
            first.stagger_offset if isinstance(first, WindowOperator) else None,
        )

    def restore(
        self,
        snapshot: OperatorSnapshot,
        parallelism: int = 1,
        restore_watermark: bool = True,
        drop: Collection[str] = (),
    ) -> None:
        """Replace the operator with a new one that is restored from a snapshot.

        Args:
            snapshot: a result of `snapshot`.
            parallelism: number of subtasks that share the rows.
            restore_watermark: False starts the watermark and the clock at their minimum, as Flink does.
            drop: contents and states of the snapshot that the new operator may drop.

        Raises:
            IncompatibleSnapshot: key, namespace or contents of the snapshot don't fit the operator.
        """
        if snapshot.max_parallelism != self.max_parallelism:
            raise IncompatibleSnapshot(
                "max_parallelism", snapshot.max_parallelism, self.max_parallelism, "Keep the number of key groups"
            )
        if self.key is None and len(snapshot.rows):
            names = tuple(snapshot.format.key)
            self.key = KeySchema(names, tuple(snapshot.rows.schema.field(name).type for name in names))
        schema = self.schema(self.key or _ANY_KEY)
        rows = migrated(snapshot.rows, snapshot.format, schema, drop) if len(snapshot.rows) else snapshot.rows
        self.late_dropped_before = self.late_dropped
        self._start(parallelism)
        for subtask, operator in enumerate(self.subtasks):
            groups = key_group_range(subtask, parallelism, self.max_parallelism)
            owned = [group in groups for group in rows["key_group"].to_pylist()]
            if restore_watermark:
                operator.restore_time(snapshot.watermark, snapshot.processing_time)
                if isinstance(operator, TwoInputOperator) and snapshot.inputs is not None:
                    operator.restore_inputs(snapshot.inputs)
            if isinstance(operator, WindowOperator):
                operator.restore_stagger(snapshot.stagger_offset)
            operator.restore_state(schema.from_table(rows.filter(pa.array(owned, pa.bool_()))))

    def records(self) -> list[Record]:
        """Return the records that were emitted since the last call, in order."""
        records, self._records = self._records, []
        return records

    def results(self) -> list[WindowResult]:
        """Return the window results since the last call, and discard the other records."""
        return [record for record in self.records() if isinstance(record, WindowResult)]

    def element_results(self) -> list[ElementResult]:
        """Return the results of process functions and joins since the last call, and discard the other records."""
        return [record for record in self.records() if isinstance(record, ElementResult)]

    def late(self) -> list[LateElement]:
        """Return the late elements since the last call, and discard the other records."""
        return [record for record in self.records() if isinstance(record, LateElement)]

    def side_outputs(self) -> list[SideOutput]:
        """Return the side outputs since the last call, and discard the other records."""
        return [record for record in self.records() if isinstance(record, SideOutput)]

    @property
    def event_time_timers(self) -> int:
        """Number of event-time timers."""
        return sum(len(subtask.timers.event_time) for subtask in self.subtasks)

    @property
    def processing_time_timers(self) -> int:
        """Number of processing-time timers."""
        return sum(len(subtask.timers.processing_time) for subtask in self.subtasks)

    @property
    def state_entries(self) -> int:
        """Number of non-empty state cells: contents, state of triggers and functions, and merging sets."""
        return sum(subtask.num_state_entries() for subtask in self.subtasks)

    @property
    def late_dropped(self) -> int:
        """Number of late elements that were discarded because the operator has no late output."""
        return self.late_dropped_before + sum(subtask.counters.late_dropped for subtask in self.subtasks)

    @property
    def current_watermark(self) -> Millis:
        """The watermark of the operator."""
        return max((subtask.timers.current_watermark for subtask in self.subtasks), default=MIN_TIMESTAMP)

    def _start(self, parallelism: int) -> None:
        self.subtasks = [self.make() for _ in range(parallelism)]

    def _share_stagger(self, subtask: KeyedOperator) -> None:
        """Pass the stagger that a subtask chose to all others, so that windows don't depend on the parallelism."""
        if isinstance(subtask, WindowOperator):
            for other in self.subtasks:
                if isinstance(other, WindowOperator) and other is not subtask:
                    other.restore_stagger(subtask.stagger_offset)

    def _collect(self, subtask: KeyedOperator) -> None:
        # Every subtask forwards watermark and status, but an operator emits them once.
        for record in subtask.take_output():
            if not (isinstance(record, WatermarkRecord | IdleRecord) and subtask is not self.subtasks[-1]):
                self._records.append(record)


class RecordingOutput:
    """A `WatermarkOutput` that records watermarks, `"idle"` and `"active"` in order, and keeps the last of them."""

    def __init__(self) -> None:
        self.out: list[Any] = []
        self.last_watermark: Millis | None = None
        self.idle = False

    def emit_watermark(self, timestamp: Millis) -> None:
        self.out.append(timestamp)
        self.last_watermark, self.idle = timestamp, False

    def mark_idle(self) -> None:
        self.out.append("idle")
        self.idle = True

    def mark_active(self) -> None:
        self.out.append("active")
        self.idle = False

    def take(self) -> list[Any]:
        """Return the calls since the last `take`."""
        out, self.out = self.out, []
        return out


class ManualClock:
    """Processing time, int64 epoch milliseconds. The test sets `now`."""

    def __init__(self, now: Millis = 0) -> None:
        self.now = now

    def __call__(self) -> Millis:
        return self.now
