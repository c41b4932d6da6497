"""Measure what `advise` and `verify` cost, by processor time in this process.

    python -m benchmarks.answers [--advise ROWS ...] [--verify EVENTS ...]

`advise` reads sessions by 1 key in 10 rows, in three source partitions, with 1 % of the rows up to two hours late.
`verify` follows each of some epochs of this many events, in tumbling windows.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from time import process_time

import numpy as np
import pyarrow as pa
from deltalake import write_deltalake

from benchmarks.events import DAY, EventSet
from benchmarks.figures import Figure, Wanted, tell
from tidegate import (
    Count,
    DeltaSource,
    EventTimeSessionWindows,
    Pipeline,
    Project,
    Sum,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    Windows,
)

_EPOCHS = 4
_PIECE = 1_000_000
_LIMITS = {1_000_000: 3.0}
_MOST_MIB = 3 * 1024
_TOTALS = {"events": Count(), "total": Sum("value")}


def advice(rows: int, folder: Path) -> Iterator[Figure]:
    """Measure `advise` over sessions: its present gap and four others, and bounds, lateness and idleness."""
    rng = np.random.default_rng(1)
    for events in EventSet(rows, keys=max(1, rows // 10)).pieces(min(_PIECE, -(-rows // 10))):
        late = np.where(rng.random(len(events)) < 0.01, rng.integers(0, 7_200_000, len(events)), 0)
        partitions = pa.array(np.array(["eu", "us", "asia"])[rng.integers(0, 3, len(events))])
        _append(folder, events, late, partitions)
    sessions = Windows(EventTimeSessionWindows.with_gap(timedelta(minutes=10)), aggregate=_TOTALS)
    project = _project(folder, sessions, timedelta(seconds=30), by="part")
    began = process_time()
    advised = project.advise("windows")
    seconds = process_time() - began
    limit = _LIMITS.get(rows)
    told = f"{len(advised.curve)} settings, {advised.present.windows:,} sessions"
    yield Figure(f"advise, {rows:,} rows", seconds, "s", Wanted("at most", limit) if limit else None, told)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    yield Figure(f"advise, {rows:,} rows: memory of the process", peak, "MiB", Wanted("at most", _MOST_MIB))


def verification(events: int, folder: Path) -> Iterator[Figure]:
    """Measure `verify --new` and `verify --budget` after epochs."""
    windows = Windows(TumblingEventTimeWindows.of(timedelta(hours=1)), aggregate=_TOTALS)
    project = _project(folder, windows, timedelta(minutes=1))
    spent = dict[str, list[float]]()

    def add(what: str, act: object) -> None:
        spent.setdefault(what, []).append(process_time() - began)

    whole = EventSet(events * _EPOCHS, span=DAY * max(1, events * _EPOCHS // 5_000_000))
    for piece in whole.pieces(events):
        _append(folder, piece)
        began = process_time()
        add("epoch", project.stream("windows"))
        began = process_time()
        add("verify --new", project.verify("windows", new=True).require())
    for what in ("verify --budget 2%, due", "verify --budget 2%, not due"):
        began = process_time()
        add(what, project.verify("windows", budget="2%").require())
    epoch = spent.pop("epoch")[-1]
    yield Figure(f"epoch, {events:,} events", epoch, "s")
    for what, seconds in spent.items():
        yield Figure(f"{what}, {events:,} events", seconds[-1], "s", detail=f"{seconds[-1] / epoch:.0%} of the epoch")


def _append(folder: Path, events: pa.Table, late: int | np.ndarray = 0, partitions: pa.Array | None = None) -> None:
    times = pa.array(events["ts"].to_numpy() - late).cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))
    columns = {"key": events["key"], "at": times, "value": events["value"]}
    write_deltalake(
        str(folder / "lake" / "events"),
        pa.table(columns if partitions is None else {**columns, "part": partitions}),
        mode="append",
    )


def _project(folder: Path, windows: Windows, bound: timedelta, by: str | None = None) -> Project:
    pipeline = Pipeline(
        name="windows",
        source=DeltaSource("events", timestamp="at"),
        key=("key",),
        watermark=WatermarkStrategy.for_bounded_out_of_orderness(bound),
        watermark_by=by,
        compute=windows,
    )
    return Project(warehouse=folder / "lake", work=folder / "work", pipelines=[pipeline], engine="local")


def measure(advise: Sequence[int], verify: Sequence[int], within: Path | None) -> Iterator[Figure]:
    """Yield the figures for each number of rows and of events."""
    for act, numbers in ((advice, advise), (verification, verify)):
        for number in numbers:
            folder = Path(tempfile.mkdtemp(dir=within))
            try:
                yield from act(number, folder)
            finally:
                shutil.rmtree(folder)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--advise", type=int, nargs="*", default=[1_000_000])
    parser.add_argument("--verify", type=int, nargs="*", default=[100_000, 1_000_000])
    parser.add_argument("--within", type=Path, help="folder for the data")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    tell(measure(given.advise, given.verify, given.within), given.json)


if __name__ == "__main__":
    main()
