"""Tidegate's side: a pipeline for each query, run as a stream over the commits of the source tables."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from time import perf_counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake

from benchmarks.nexmark.events import BASE, TABLES, Events
from benchmarks.nexmark.truth import COMMIT_SECONDS
from tests.commit_times import date_commit, newest_entry
from tidegate.pipelines import DeltaSource, Input, Pipeline
from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.engine.base import Engine
from tidegate.pipelines.ledger.manifest import Interval
from tidegate.pipelines.run.backfill import backfill
from tidegate.pipelines.run.drive import drive
from tidegate.pipelines.run.limits import EpochLimits
from tidegate.pipelines.run.stream import Stream
from tidegate.windowing import (
    Count,
    CumulateEventTimeWindows,
    EventTimeSessionWindows,
    Max,
    SlidingEventTimeWindows,
    Sum,
    TopN,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WatermarkStrategy,
    WindowJoin,
    Windows,
)

_SECOND, _DAY = timedelta(seconds=1), timedelta(days=1)
_DAY_MILLIS = 86_400_000
_TENS = TumblingEventTimeWindows.of(10 * _SECOND)
_MOST = 200
"""Rows of a window that may share the first place; the check fails if there are more."""
_NOBODY = -1
"""Key of the rows that end the stream, which are in no answer."""


@dataclass
class Ours:
    """The source tables, and an engine.

    Args:
        folder: folder of the tables and of all projects.
        engine: the engine.
        limits: the limits of an epoch.
    """

    folder: Path
    engine: Engine
    limits: EpochLimits
    _seconds: float = field(default=0.0, init=False)

    def write(self, events: Events) -> None:
        """Write all events in commits, and a commit of rows two days later, which end all windows before them."""
        for name in TABLES:
            rows = events.tables[name]
            for number in range(events.commits):
                time = BASE + number * COMMIT_SECONDS * 1000
                self._commit(name, rows.filter(pc.equal(rows["commit"], number)), time)
            last = {column: rows[column][-1:].combine_chunks() for column in rows.column_names}
            last["at"] = pc.add(last["at"], pa.scalar(2 * _DAY))
            last |= {key: pa.array([_NOBODY]) for key in ("id", "seller", "auction", "bidder") if key in last}
            self._commit(name, pa.table(last), BASE + 3 * _DAY_MILLIS)

    def _commit(self, name: str, rows: pa.Table, time: int) -> None:
        write_deltalake(str(self.folder / name), rows.drop_columns(["commit"]), mode="append")
        date_commit(newest_entry(str(self.folder / name)), time)

    def answer(self, query: str) -> tuple[pa.Table, float]:
        """Run the pipelines of a query over all commits, and return its answer and the seconds of the runs."""
        self._seconds = 0.0
        with self._project() as config:
            rows = _ANSWERS[query](self, config)
        return rows, self._seconds

    def run(self, config: Config, pipeline: Pipeline, *, whole: bool = False) -> pa.Table:
        """Run a pipeline as a stream, or as a backfill of all rows, and return its results."""
        began = perf_counter()
        # The clock is past all processing-time windows.
        with drive(config, pipeline, "bench", self.engine, clock=lambda: BASE + 10 * _DAY_MILLIS) as driver:
            if whole:
                list(backfill(driver, [Interval(start=BASE - _DAY_MILLIS, end=BASE + _DAY_MILLIS)]))
            else:
                Stream(driver, lambda manifest: None, self.limits).run_available()
        self._seconds += perf_counter() - began
        results = DeltaTable(str(config.root / "warehouse" / pipeline.name / "results")).to_pyarrow_table()
        # Times in answers are milliseconds.
        for place, kept in enumerate(results.schema):
            if pa.types.is_timestamp(kept.type):
                results = results.set_column(place, kept.name, _millis(results[kept.name]))
        return results

    def pipeline(self, name: str, source: str, key: tuple[str, ...], compute: Any, **options: Any) -> Pipeline:
        """Return a pipeline over one of the source tables."""
        return Pipeline(
            name=name,
            source=DeltaSource(str(self.folder / source), timestamp="at"),
            key=key,
            watermark=WatermarkStrategy.for_bounded_out_of_orderness(4 * _SECOND),
            compute=compute,
            **options,
        )

    @contextmanager
    def _project(self) -> Iterator[Config]:
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            yield Config(warehouse="warehouse", root=Path(folder))


def _millis(moments: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.divide(moments.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()), 1000)


def _windows(ours: Ours, config: Config, name: str, key: str, windows: Windows) -> pa.Table:
    results = ours.run(config, ours.pipeline(name, "bid", (key,), windows))
    return results.rename_columns({"window_start": "start", "window_end": "stop"})


def _unnested(results: pa.Table, column: str, kept: list[str]) -> pa.Table:
    """Return a row for each entry of the lists in a column, with other columns of its row."""
    lists = results[column].combine_chunks()
    rows = results.select(kept).take(pc.list_parent_indices(lists))
    entries = lists.flatten()
    for place, part in enumerate(entries.type):
        values = entries.field(place)
        rows = rows.append_column(part.name, _millis(values) if pa.types.is_timestamp(part.type) else values)
    return rows.rename_columns({"at": "ms"} if "at" in rows.column_names else {})


def _first_places(rows: pa.Table, by: str) -> pa.Table:
    """Return the rows of each window with its largest value.

    Raises:
        RuntimeError: more rows share a first place than were kept.
    """
    best = rows.group_by("start").aggregate([(by, "max"), (by, "count")])
    joined = rows.join(best, "start")
    chosen = joined.filter(pc.equal(joined[by], joined[f"{by}_max"]))
    if len(chosen) and pc.max(chosen.group_by("start").aggregate([(by, "count")])[f"{by}_count"]).as_py() == _MOST:
        raise RuntimeError(f"{_MOST} rows share the first place of a window")
    return chosen.drop_columns([f"{by}_max", f"{by}_count"])


def _q5(ours: Ours, config: Config) -> pa.Table:
    hops = Windows(SlidingEventTimeWindows.of(10 * _SECOND, 2 * _SECOND), aggregate={"bids": Count()})
    ours.run(config, ours.pipeline("q5_counts", "bid", ("auction",), hops))
    counts = config.root / "warehouse" / "q5_counts" / "results"
    best = Pipeline(
        name="q5",
        source=DeltaSource(str(counts), timestamp="window_start"),
        key=(),
        watermark=WatermarkStrategy.for_monotonous_timestamps(),
        compute=Windows(
            TumblingEventTimeWindows.of(2 * _SECOND), aggregate={"best": TopN(_MOST, by="bids", ties=["auction"])}
        ),
    )
    results = ours.run(config, best, whole=True).rename_columns({"window_start": "start"})
    return _first_places(_unnested(results, "best", ["start"]), "bids")


def _q7(ours: Ours, config: Config) -> pa.Table:
    best = Windows(_TENS, aggregate={"best": TopN(_MOST, by="price", also=["auction", "bidder", "at"])})
    results = ours.run(config, ours.pipeline("q7", "bid", (), best)).rename_columns({"window_start": "start"})
    return _first_places(_unnested(results, "best", ["start"]), "price")


def _q8(ours: Ours, config: Config) -> pa.Table:
    opened = Input(source=DeltaSource(str(ours.folder / "auction"), timestamp="at"), key=("seller",), uses=("id",))
    pipeline = ours.pipeline("q8", "person", ("id",), WindowJoin(_TENS, "semi"), right=opened, uses=("name",))
    rows = ours.run(config, pipeline)
    names = pc.struct_field(rows["left"], "name")
    return pa.table({"id": rows["id"], "name": names, "start": rows["window_start"]})


def _q11(ours: Ours, config: Config) -> pa.Table:
    sessions = Windows(EventTimeSessionWindows.with_gap(10 * _SECOND), aggregate={"bids": Count()})
    return _windows(ours, config, "q11", "bidder", sessions)


def _q12(ours: Ours, config: Config) -> pa.Table:
    windows = Windows(TumblingProcessingTimeWindows.of(10 * _SECOND), aggregate={"bids": Count()})
    rows = _windows(ours, config, "q12", "bidder", windows)
    return rows.filter(pc.not_equal(rows["bidder"], _NOBODY))


def _day(top: TopN) -> Windows:
    return Windows(TumblingEventTimeWindows.of(_DAY), aggregate={"best": top})


def _q18(ours: Ours, config: Config) -> pa.Table:
    last = _day(TopN(1, by="at", ties=["price", "channel"]))
    results = ours.run(config, ours.pipeline("q18", "bid", ("bidder", "auction"), last))
    return _unnested(results, "best", ["bidder", "auction"])


def _q19(ours: Ours, config: Config) -> pa.Table:
    top = _day(TopN(10, by="price", ties=["at", "bidder", "channel"]))
    return _unnested(ours.run(config, ours.pipeline("q19", "bid", ("auction",), top)), "best", ["auction"])


def _hop(ours: Ours, config: Config) -> pa.Table:
    hops = SlidingEventTimeWindows.of(10 * _SECOND, 2 * _SECOND)
    aggregate = {"bids": Count(), "total": Sum("price")}
    return _windows(ours, config, "hop", "auction", Windows(hops, aggregate=aggregate))


def _cumulate(ours: Ours, config: Config) -> pa.Table:
    steps = CumulateEventTimeWindows.of(60 * _SECOND, 10 * _SECOND)
    aggregate = {"bids": Count(), "highest": Max("price")}
    return _windows(ours, config, "cumulate", "auction", Windows(steps, aggregate=aggregate))


_ANSWERS: dict[str, Callable[[Ours, Config], pa.Table]] = {
    "q5": _q5,
    "q7": _q7,
    "q8": _q8,
    "q11": _q11,
    "q12": _q12,
    "q18": _q18,
    "q19": _q19,
    "hop": _hop,
    "cumulate": _cumulate,
}
