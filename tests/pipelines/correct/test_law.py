"""The law of changes: whatever happens to a source, the final windows are those of one backfill of it as it is now.

Sources are drawn: rows come, go, change and come back. After commits of a drawn walk, the windows are compared with one
backfill of the rows of the source. Rows of table late that no window holds are left out. No JVM runs.

Each run checks more than 500 histories: what happened to the rows of a user up to a check (`walks.HISTORIES`).
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.lake import DAY0
from tests.pipelines.correct.pipelines import HOUR, PIPELINES
from tests.pipelines.correct.walks import operator, walking
from tests.pipelines.looping import Waits
from tidegate.pipelines.run.backfill import backfill
from tidegate.pipelines.run.intervals import cut
from tidegate.pipelines.run.stream import Stream

PUTS_OUT_PARTS = "hours, discarding, with lateness"
"""The pipeline whose late panes contain only the late rows, as they should: each further history may fire one."""


def streamed(folder: Path, name: str, seed: str) -> None:
    """Stream over a walk."""
    with walking(folder, name, seed) as walk:
        draw = walk.changing.draw

        def happens(number: int) -> None:
            walk.check()
            if draw.random() < 0.1:
                walk.go_back()
            for _ in range(draw.choice((1, 1, 1, 1, 2))):
                walk.happen()

        waits = Waits(happens)
        stream = Stream(walk.driver, lambda manifest: None, pause=waits.pause, timer=waits.timer)
        stream.run_continuously(timedelta(seconds=1), lambda: walk.is_over)
        walk.check_counts()


def backfilled(folder: Path, name: str, seed: str) -> None:
    """Backfill a walk interval by interval, including hours without rows."""
    with walking(folder, name, seed) as walk:
        # Sliding windows begin before their first row, and nothing from before the first interval is reopened after an
        # UPDATE or OPTIMIZE.
        hour = -1
        while not walk.is_over:
            for _ in range(walk.changing.draw.choice((1, 2, 3))):
                walk.happen()
            list(backfill(walk.driver, cut(DAY0 + hour * HOUR, DAY0 + (hour + 1) * HOUR, None)))
            walk.check()
            if name != PUTS_OUT_PARTS and walk.changing.draw.random() < 0.15:
                # Rows that were only added are read by this run or by the one for the next hour, so the law holds after
                # that.
                walk.happen()
                again = DAY0 + walk.changing.draw.randrange(-1, hour + 1) * HOUR
                walk.happened.append(f"again {again:%H:%M}")
                list(backfill(walk.driver, cut(again, again + HOUR, None), and_following=True))
            hour += 1
        walk.changing.delete_a_user()
        walk.changing.settle()
        list(backfill(walk.driver, cut(DAY0, DAY0 + HOUR, None)))
        walk.reopen()
        walk.check()
        walk.check_counts()


def walks(turn: int) -> list[Any]:
    """Each pipeline runs with both operators in turn. Single operators, and the other pipeline's law, are in the long
    form.

    With an evictor or a gap function only the row operator computes it.
    """

    def kinds(windows: Any) -> tuple[str, ...]:
        needs_rows = windows.evictor is not None or windows.assigner.needs_rows is not None
        return ("row",) if needs_rows else ("both", "columnar", "row")

    return [
        pytest.param(name, kind, marks=[] if kind == "both" and place % 2 == turn else [pytest.mark.long])
        for place, (name, pipeline) in enumerate(PIPELINES.items())
        for kind in kinds(pipeline.compute)
    ]


@pytest.mark.first(2)
@pytest.mark.parametrize(("name", "kind"), walks(0))
def test_a_stream_with_its_late_rows_is_a_backfill_of_the_table_as_it_is(tmp_path: Path, name: str, kind: str) -> None:
    with operator(kind):
        streamed(tmp_path, name, f"stream {name} {kind}")


@pytest.mark.first(2)
@pytest.mark.parametrize(("name", "kind"), walks(1))
def test_a_backfill_by_intervals_is_a_backfill_of_the_table_as_it_is(tmp_path: Path, name: str, kind: str) -> None:
    with operator(kind):
        backfilled(tmp_path, name, f"backfill {name} {kind}")
