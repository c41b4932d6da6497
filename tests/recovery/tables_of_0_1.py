"""Tables as tidegate 0.1 left them, in `tables_of_0_1.tar.xz`: what `test_upgrading.py` goes on from.

They were made once, by the last commit before manifests, logs and states got what 0.2 adds:

    git worktree add --detach /tmp/before 1bd7935
    cp tests/recovery/tables_of_0_1.py /tmp/before/tests/recovery/
    cd /tmp/before && PYTHONPATH=$PWD python -m tests.recovery.tables_of_0_1 tables_of_0_1.tar.xz

Without a JVM, by that commit's own `without_spark.py`: one stream is at rest, and a driver of the other died between
the commit of an epoch and its publishing. Both have late rows, rejects, open windows and a savepoint.
"""

from __future__ import annotations

import sys
import tarfile
import tempfile
from datetime import timedelta
from pathlib import Path

from tests.lake import LOCAL, Lake, Row, at, hourly_pipeline, session_pipeline
from tests.recovery.arrivals import crash_after, run
from tidegate.pipelines.ledger.snapshots.head import require_snapshot
from tidegate.pipelines.ledger.snapshots.savepoint import create_savepoint
from tidegate.windowing import Count, Mean, Sum, TumblingEventTimeWindows, Variance, Windows

SAVEPOINT = "before-upgrade"

HOURS = hourly_pipeline(
    compute=Windows(
        TumblingEventTimeWindows.of(timedelta(hours=1)),
        allowed_lateness=timedelta(minutes=30),
        aggregate={"events": Count(), "total": Sum("value"), "mean": Mean("value"), "spread": Variance("value")},
    ),
    parallelism=2,
    max_parallelism=8,
)
SESSIONS = session_pipeline(parallelism=2, max_parallelism=8)

COMMITS: tuple[tuple[Row, ...], ...] = (
    (("ann", at("08:10"), 1), ("bob", at("08:20"), 2), ("cid", at("08:30"), 4), (None, at("08:40"), 8)),
    (("ann", at("08:30"), 16), ("bob", at("10:10"), 32), ("cid", at("10:40"), 64), ("ann", None, 128)),
    (("ann", at("08:50"), 256), ("bob", at("10:20"), 512), ("ann", at("12:00"), 1024)),
    (("cid", at("10:55"), 2048), ("bob", at("12:40"), 4096), ("ann", at("13:30"), 8192), ("bob", at("08:55"), 3)),
)
"""Rows that 0.1 read, one epoch each: in order, late, in no window, and in windows that stay open."""

NEXT: tuple[tuple[Row, ...], ...] = (
    (("ann", at("13:40"), 5), ("bob", at("14:50"), 7), ("cid", at("09:10"), 9)),
    (("ann", at("18:00"), 11), ("bob", at("18:10"), 13), ("cid", at("18:20"), 15)),
)
"""Rows that come after the upgrade."""


def make(file: Path) -> None:
    """Run the streams, and pack their tables."""
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(Path(folder))
        for number, rows in enumerate(COMMITS, start=1):
            lake.append(*rows)
            run(LOCAL, lake, pipeline=HOURS)
            if number < len(COMMITS):
                run(LOCAL, lake, pipeline=SESSIONS)
            if number == 2:
                for pipeline in (HOURS, SESSIONS):
                    tables = lake.tables(pipeline)
                    create_savepoint(tables, require_snapshot(tables), SAVEPOINT, lake.clock())
        crash_after(LOCAL, lake, "committed", pipeline=SESSIONS)
        with tarfile.open(file, "w:xz") as packed:
            packed.add(lake.path(""), "warehouse")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
