"""The frozen warehouse of format 1, which 0.3 introduced: its pipelines, its life, and what 0.3 read in it.

    make frozen

writes `warehouse_0_3.tar.xz`, with the warehouse and `expected.json`. Until 0.3.0 is released, every change of a format
runs this again. After that, this module and its archive never change: a version with a new format adds a module and an
archive of its own, and a step to `pipelines/ledger/migrations.py`.
"""

from __future__ import annotations

import json
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
from deltalake import DeltaTable

from tests.lake import Lake, Row, at, hourly_pipeline, session_pipeline
from tidegate import Project
from tidegate.pipelines import DeltaSource, Input, Pipeline
from tidegate.pipelines.epoch import shard_state
from tidegate.windowing import (
    Accumulation,
    AfterCount,
    AfterWatermark,
    Count,
    EventTimeSessionWindows,
    IntervalJoin,
    KeyedProcess,
    KeyedProcessFunction,
    Mean,
    SlidingEventTimeWindows,
    Sum,
    TumblingProcessingTimeWindows,
    Variance,
    WindowJoin,
    Windows,
    count_windows,
)
from tidegate.windowing.state import ListStateDescriptor, StateDescriptor, StateTtlConfig, ValueStateDescriptor

ARCHIVE = Path(__file__).with_suffix(".tar.xz")

MINUTE = timedelta(minutes=1)
HOUR = 60 * MINUTE
SUMS: dict[str, Any] = {"events": Count(), "total": Sum("value")}


class Alarm(KeyedProcessFunction):
    """Ten minutes after the first of several elements, emit how many there were, by a timer."""

    result_type = pa.struct([("count", pa.int64()), ("first", pa.int64())])
    first = ValueStateDescriptor("first", pa.int64(), StateTtlConfig(86_400_000))
    values = ListStateDescriptor("values", pa.int64())

    def states(self) -> Sequence[StateDescriptor]:
        return (self.first, self.values)

    def process_element(self, value: Any, ctx: Any) -> None:
        if ctx.get_state(self.first).value() is None:
            ctx.get_state(self.first).update(value["value"])
            ctx.timer_service().register_event_time_timer(ctx.timestamp + 600_000)
        ctx.get_state(self.values).add(value["value"])

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[dict[str, Any]]:
        yield {"count": len(list(ctx.get_state(self.values).get())), "first": ctx.get_state(self.first).value()}
        ctx.get_state(self.first).clear()
        ctx.get_state(self.values).clear()


RIGHT = {"right": Input(source=DeltaSource("right", timestamp="at"))}
SHARDS: dict[str, Any] = {"parallelism": 2, "max_parallelism": 8}

HOURS = hourly_pipeline(
    allowed_lateness=30 * MINUTE,
    aggregate={**SUMS, "mean": Mean("value"), "spread": Variance("value")},
    source=DeltaSource("changing", timestamp="at", changes="correct"),
    **SHARDS,
)
HALVES = hourly_pipeline("halves", **SHARDS)
SESSIONS = session_pipeline(parallelism=1, max_parallelism=8)
EARLY = hourly_pipeline(
    "early",
    compute=Windows(
        EventTimeSessionWindows.with_gap(30 * MINUTE),
        AfterWatermark(early=AfterCount(2), late=AfterCount(1)),
        accumulation=Accumulation.RETRACTING,
        allowed_lateness=HOUR,
        aggregate=SUMS,
    ),
    **SHARDS,
)
SLIDING = hourly_pipeline(
    "sliding", compute=Windows(SlidingEventTimeWindows.of(2 * HOUR, 30 * MINUTE), aggregate=SUMS), **SHARDS
)
COUNTS = hourly_pipeline("counts", compute=count_windows(2, aggregate=SUMS), **SHARDS)
CLOCK = hourly_pipeline(
    "clock", compute=Windows(TumblingProcessingTimeWindows.of(timedelta(days=20_000)), aggregate=SUMS), **SHARDS
)
ALARMS = hourly_pipeline("alarms", compute=KeyedProcess(Alarm()), **SHARDS)
JOINED = hourly_pipeline("joined", compute=IntervalJoin.between(-HOUR, HOUR), **RIGHT, **SHARDS)
MATCHED = hourly_pipeline(
    "matched", compute=WindowJoin(SlidingEventTimeWindows.of(HOUR, HOUR), "full"), **RIGHT, **SHARDS
)

STREAMS = (HOURS, SESSIONS, EARLY, SLIDING, COUNTS, CLOCK, ALARMS, JOINED, MATCHED)
PIPELINES = (*STREAMS, HALVES)

SAVEPOINT = "before-upgrade"
FORGOTTEN = "zoe"

COMMITS: tuple[tuple[Row, ...], ...] = (
    (("ann", at("08:10"), 1), ("bob", at("08:20"), 2), ("cid", at("08:30"), 4), (None, at("08:40"), 8)),
    (("ann", at("08:30"), 16), ("bob", at("10:10"), 32), ("cid", at("10:40"), 64), ("zoe", at("10:20"), 7)),
    (("ann", at("08:50"), 256), ("bob", at("10:20"), 512), ("ann", at("12:00"), 1024)),
    (("cid", at("10:55"), 2048), ("bob", at("12:40"), 4096), ("ann", at("13:30"), 8192), ("bob", at("08:55"), 3)),
)
"""Rows that the streams read, one epoch each: in order, late, without a key, and in windows that stay open."""

LATER: tuple[Row, ...] = (("ann", at("13:40"), 5), ("bob", at("14:50"), 7), ("cid", at("09:10"), 9))
"""Rows of the last commit, in the epoch after the special ones."""

NEXT: tuple[tuple[Row, ...], ...] = (
    (("ann", at("15:40"), 5), ("bob", at("15:50"), 7), ("cid", at("09:40"), 9)),
    (("ann", at("20:00"), 11), ("bob", at("20:10"), 13), ("cid", at("20:20"), 15)),
)
"""Rows that come after the upgrade."""


def project_in(folder: Path) -> Project:
    """Return the project of a folder."""
    return Lake(folder).project(*PIPELINES)


def _append(folder: Path, rows: Sequence[Row]) -> None:
    for table in ("events", "right", "changing"):
        Lake(folder).append(*rows, table=table)


def _read(project: Project, folder: Path, commits: Sequence[Sequence[Row]], starts: Sequence[datetime]) -> None:
    """Run each stream after each commit, then the backfill of the half days that begin at these times."""
    for rows in commits:
        _append(folder, rows)
        for pipeline in STREAMS:
            project.stream(pipeline.name)
    for start in starts:
        project.backfill(HALVES.name, start=start, end=start + 12 * HOUR)


def live(folder: Path) -> None:
    """Let the pipelines lead a life with every kind of epoch, snapshot and table."""
    project = project_in(folder)
    _read(project, folder, COMMITS, (at("00:00"), at("12:00")))
    project.savepoints.create(HOURS.name, SAVEPOINT)
    project.savepoints.create(SESSIONS.name, SAVEPOINT)
    # A correction retracts a window, and the next one brings it back.
    for predicate in ("user = 'cid' AND value = 4", "user = 'ann' AND value = 1"):
        DeltaTable(Lake(folder).path("changing")).delete(predicate)
        project.stream(HOURS.name)
    project.late.reopen(HOURS.name)
    project.forget(HOURS.name, (FORGOTTEN,))
    project.late.prune(EARLY.name, days=0)
    project.restore(EARLY.name, 2)
    project.stream(EARLY.name)
    # Earlier rows, so that their interval is run again and the following one becomes stale.
    _append(folder, LATER)
    project.backfill(HALVES.name, start=at("00:00"), end=at("12:00"))
    for pipeline in STREAMS:
        if pipeline is not SESSIONS:
            project.stream(pipeline.name)
    # Few rows make a delta only if that is allowed for them.
    with mock.patch.multiple(shard_state, SMALLEST=1, SHARE=0.5):
        for minute in (41, 42, 43):
            Lake(folder).append(("ann", at(f"13:{minute}"), 1))
            project.stream(SESSIONS.name)
    project.source.reset(EARLY.name, keep_results=True, from_="now", force=True)
    project.quality.check(HOURS.name)


def continue_(folder: Path) -> None:
    """Let the pipelines read what comes after the upgrade."""
    _read(project_in(folder), folder, NEXT, (at("12:00"), at("00:00", 1)))


OF_RUN = frozenset(
    {"epoch", "timeline", "emitted_at", "watermark", "stale", "reopened", "rejected_at", "final_at", "pane", "timing"}
)
"""Columns that tell how a run was divided into epochs, and when."""


def contents(lake: Lake, pipeline: Pipeline) -> dict[str, list[str]]:
    """Return what readers see of a pipeline, without what identifies a run."""
    tables = {
        "latest": lake.latest(pipeline),
        "late": lake.rows(pipeline, "late"),
        "rejects": lake.rows(pipeline, "rejects"),
    }
    return {
        name: sorted(
            str({column: str(row[column]) for column in rows.column_names if column not in OF_RUN})
            for row in rows.to_pylist()
        )
        for name, rows in tables.items()
    }


def freeze(archive: Path) -> None:
    """Write the archive."""
    with tempfile.TemporaryDirectory() as base:
        folder, continued = Path(base, "lake"), Path(base, "continued")
        folder.mkdir()
        live(folder)
        shutil.rmtree(folder / "work", ignore_errors=True)
        shutil.copytree(folder, continued)
        continue_(continued)
        expected = {
            when: {pipeline.name: contents(Lake(place), pipeline) for pipeline in PIPELINES}
            for when, place in (("read", folder), ("continued", continued))
        }
        (folder / "expected.json").write_text(json.dumps(expected, indent=1, sort_keys=True), encoding="utf-8")
        with tarfile.open(archive, "w:xz", preset=9) as packed:
            for name in ("warehouse", "expected.json"):
                packed.add(folder / name, name)
    print(f"{archive}: {archive.stat().st_size // 1000} kB")


if __name__ == "__main__":
    freeze(ARCHIVE)
