"""Three days of events, some late, some of no use, and the pipeline that recovery tests run over them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import timedelta

from tests.lake import DAY0, Lake, Row, session_pipeline
from tests.recovery.arrivals import outcome
from tidegate.pipelines.ledger.manifest import Interval
from tidegate.pipelines.run.intervals import cut, parse_slice

START, END = DAY0, DAY0 + timedelta(days=3)

PIPELINE = session_pipeline(timedelta(minutes=30))


def arriving(lake: Lake) -> Iterator[Interval]:
    """The days one after the other, each day's rows arriving before its interval is run, once.

    After a crash it begins with the day that was being run. Every day has a null key, a null time, and
    a row for the day before, which comes too late.
    """
    loaded = lake.folder / "loaded"
    begun = int(loaded.read_text()) if loaded.exists() else 0
    days = list(enumerate(cut(START, END, parse_slice("1d"))))
    for day, interval in days[max(0, begun - 1) :]:
        if begun <= day:
            draw = random.Random(day)
            begin = START + timedelta(days=day)
            rows: list[Row] = [
                (f"user{draw.randrange(8)}", begin + timedelta(minutes=draw.randrange(1440)), draw.randrange(50))
                for _ in range(120)
            ]
            rows += [(None, begin, 1), (f"user{day}", None, 2), (f"late{day}", begin - timedelta(hours=20), 3)]
            lake.append(*rows)
            loaded.write_text(str(day + 1))
        yield interval


def published(lake: Lake) -> dict[str, list[str]]:
    """Everything that readers can see, without the clock of the run; the position has the id of the source."""
    found = outcome(lake, PIPELINE, ("processing_time", "watermark_lag_ms"))
    return {table: rows for table, rows in found.items() if table != "position"}
