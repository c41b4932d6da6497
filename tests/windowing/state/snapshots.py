"""The scenarios of the frozen snapshots, and how one is written to and read from a Parquet file.

python -m tests.windowing.state.snapshots writes the missing ones. Existing files are frozen since 0.3: all later code
must restore a snapshot that was once taken, with the results that it had then.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.windowing import (
    Accumulation,
    AfterAny,
    AfterCount,
    AfterProcessingTime,
    AfterWatermark,
    ContinuousEventTimeTrigger,
    Count,
    CountEvictor,
    EventTimeSessionWindows,
    GlobalWindows,
    IntervalJoin,
    KeyedProcessFunction,
    Max,
    Mean,
    Repeatedly,
    SlidingEventTimeWindows,
    Sum,
    TumblingEventTimeWindows,
    Windows,
    WindowStagger,
)
from tidegate.windowing.aggregates import AggregateColumns
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.operators.records import ElementResult, LateElement, WindowResult
from tidegate.windowing.panes import PanePolicy
from tidegate.windowing.state import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from tidegate.windowing.state.migration import StateFormat
from tidegate.windowing.testing import (
    OperatorHarness,
    OperatorSnapshot,
    interval_join_harness,
    keyed_process_harness,
    window_harness,
)
from tidegate.windowing.time import MAX_TIMESTAMP

FOLDER = Path(__file__).parent / "frozen"
VALUES = pa.schema([("x", pa.int64()), ("y", pa.float64())])
ROW = pa.struct(list(VALUES))
STRING_KEY = KeySchema.of(key=pa.string())


def plus(a: int, b: int) -> int:
    return a + b


def aggregated(**functions: Any) -> AggregateColumns:
    return AggregateColumns.of(functions, VALUES)


class Everything(KeyedProcessFunction):
    """One state of each kind, and a timer in each domain; a timer emits what is remembered."""

    last = ValueStateDescriptor("last", pa.int64(), StateTtlConfig(10_000))
    all = ListStateDescriptor("all", pa.float64())
    by_size = MapStateDescriptor("by_size", pa.string(), pa.int64())
    total = ReducingStateDescriptor("total", plus, pa.int64())
    result_type = pa.struct([("text", pa.string())])

    def process_element(self, value: Any, ctx: Any) -> None:
        ctx.get_state(self.last).update(value["x"])
        ctx.get_state(self.all).add(value["y"])
        ctx.get_state(self.by_size).put("odd" if value["x"] % 2 else "even", value["x"])
        ctx.get_state(self.total).add(value["x"])
        ctx.timer_service().register_event_time_timer(ctx.timestamp + 50)
        ctx.timer_service().register_processing_time_timer(100)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any]:
        held = [
            ctx.get_state(self.last).value(),
            ctx.get_state(self.all).get(),
            sorted(ctx.get_state(self.by_size).items()),
            ctx.get_state(self.total).get(),
        ]
        yield {"text": f"{ctx.time_domain.value} {held}"}

    def states(self) -> Any:
        return self.last, self.all, self.by_size, self.total


def windows(key: KeySchema, value: Windows, panes: PanePolicy | None = None) -> OperatorHarness:
    return window_harness(value, key=key, value_type=ROW, panes=panes)


SCENARIOS: dict[str, Callable[[], OperatorHarness]] = {
    "tumbling_aggregates": lambda: windows(
        STRING_KEY,
        Windows(
            TumblingEventTimeWindows.of(20),
            allowed_lateness=30,
            aggregate=aggregated(n=Count(), sum=Sum("x"), mean=Mean("y"), largest=Max("x")),
        ),
    ),
    "sliding_reduce_two_key_columns": lambda: windows(
        KeySchema.of(name=pa.string(), number=pa.int64()),
        Windows(SlidingEventTimeWindows.of(20, 10), reduce=lambda a, b: {"x": a["x"] + b["x"], "y": b["y"]}),
    ),
    "sessions_retracting_coalesced": lambda: windows(
        STRING_KEY,
        Windows(
            EventTimeSessionWindows.with_gap(12),
            AfterWatermark(early=Repeatedly(AfterAny.of(AfterCount(2), AfterProcessingTime(15)))),
            allowed_lateness=40,
            accumulation=Accumulation.RETRACTING,
            aggregate=aggregated(n=Count(), sum=Sum("x")),
        ),
        PanePolicy(Accumulation.RETRACTING, retract_merged=True, coalesce_late=True),
    ),
    "sessions_discarding": lambda: windows(
        STRING_KEY,
        Windows(
            EventTimeSessionWindows.with_gap(12),
            ContinuousEventTimeTrigger.of(5),
            allowed_lateness=40,
            aggregate=aggregated(n=Count(), sum=Sum("x")),
        ),
        PanePolicy(Accumulation.DISCARDING, retract_merged=True),
    ),
    "global_elements_evicted": lambda: windows(
        STRING_KEY,
        Windows(
            GlobalWindows.create(),
            Repeatedly(AfterCount(3)),
            CountEvictor.of(4),
            reduce=lambda a, b: {"x": a["x"] + b["x"], "y": b["y"]},
        ),
    ),
    "tumbling_staggered": lambda: windows(
        STRING_KEY,
        Windows(
            TumblingEventTimeWindows.of(20, 3, WindowStagger.RANDOM, stagger_seed=5), aggregate=aggregated(n=Count())
        ),
    ),
    "keyed_process": lambda: keyed_process_harness(Everything(), key=STRING_KEY),
    "interval_join": lambda: interval_join_harness(
        IntervalJoin.between(-15, 15), key=STRING_KEY, left_type=ROW, right_type=ROW
    ),
}


def before(name: str) -> OperatorHarness:
    """Run a scenario up to its snapshot."""
    run = SCENARIOS[name]()
    for step in range(24):
        run.processing_time(step)
        feed(run, name, step, step * 5 % 47)
        if step % 4 == 3:
            run.watermark(step)
            run.end_commit()
    feed(run, name, 24, 2)
    run.records()
    return run


def after(run: OperatorHarness, name: str) -> list[str]:
    """Return the output after the snapshot, as sorted text."""
    for step in range(25, 40):
        run.processing_time(step * 3)
        feed(run, name, step, step * 7 % 61)
        run.watermark(step)
    run.end_commit()
    run.processing_time(MAX_TIMESTAMP)
    run.watermark(MAX_TIMESTAMP)
    kept = (WindowResult, LateElement, ElementResult)
    return sorted(shown(record) for record in run.records() if isinstance(record, kept))


def feed(run: OperatorHarness, name: str, step: int, timestamp: int) -> None:
    key: Any = "abcd"[step % 4]
    if name == "sliding_reduce_two_key_columns":
        key = (key, step % 2)
    side = ("left", "right")[step % 2] if name == "interval_join" else None
    run.element(key, {"x": step, "y": step / 4}, timestamp, side)


def shown(record: Any) -> str:
    return " ".join(f"{name}={_plain(value)}" for name, value in record._asdict().items())


def _plain(value: Any) -> str:
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return str(list(value))
    return str(getattr(value, "value", tuple(value) if isinstance(value, tuple) else value))


def write(snapshot: OperatorSnapshot, path: Path) -> None:
    about = {
        "format": snapshot.format.to_json(),
        "max_parallelism": snapshot.max_parallelism,
        "watermark": snapshot.watermark,
        "processing_time": snapshot.processing_time,
        "inputs": snapshot.inputs,
        "stagger_offset": snapshot.stagger_offset,
    }
    pq.write_table(snapshot.rows.replace_schema_metadata({"tidegate": json.dumps(about)}), path)


def read(path: Path) -> OperatorSnapshot:
    rows = pq.read_table(path)
    about = json.loads(rows.schema.metadata[b"tidegate"])
    return OperatorSnapshot(rows, **{**about, "format": StateFormat.from_json(about["format"])})


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name in SCENARIOS:
        path = FOLDER / f"{name}.parquet"
        if not path.exists():
            run = before(name)
            write(run.snapshot(), path)
            path.with_suffix(".txt").write_text("\n".join(after(run, name)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
