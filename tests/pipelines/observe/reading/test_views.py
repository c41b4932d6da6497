"""The views that Spark's format `tidegate` reads are those of the tables, and a stream of changes adds up to them.
Histories are random: epochs of sessions with late firings and retractions, and restores that remove rows or mark them.
At each point a view is compared with the functions that `tidegate results` uses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.lake import at, session_pipeline
from tests.pipelines.by_hand import ByHand
from tests.pipelines.observe.reading.targets import changes, rows_of, target_of
from tidegate.pipelines.definition import results
from tidegate.pipelines.ledger.snapshots.head import require_snapshot
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.observe.reading.reached import Reached
from tidegate.windowing import Accumulation, Count, EventTimeSessionWindows, Sum, Windows
from tidegate.windowing.time import to_millis

KEY = ("user",)

Rows = Counter[tuple[object, ...]]


@dataclass(frozen=True)
class Moment:
    """A point of a history: how far it was published, and its views, computed by the functions in memory."""

    reached: Reached
    final: Rows
    latest: Rows


def counted(rows: pa.Table) -> Rows:
    return Counter(
        (row["user"], row["window_id"], row["pane"], row["epoch"], row["total"], row["window_end"])
        for row in rows.to_pylist()
    )


@dataclass(frozen=True)
class Step:
    """An epoch with events (user, minute, value), after which the watermark has advanced; or a restore this many epochs
    back.
    """

    events: tuple[tuple[str | None, int, int], ...] = ()
    minutes: int = 0
    back: int = 0
    keep_stale: bool = True


events = st.tuples(st.sampled_from(["ann", None, "zoë"]), st.integers(-150, 60), st.integers(1, 9))
steps = st.builds(
    Step,
    st.lists(events, max_size=5).map(tuple),
    st.integers(0, 90),
    st.sampled_from([0, 0, 0, 0, 1, 2]),
    st.booleans(),
)


def lived(folder: Path, accumulation: Accumulation, history: Sequence[Step]) -> tuple[ByHand, list[Moment]]:
    """A pipeline after a history, and each point of it."""
    windows = Windows(
        EventTimeSessionWindows.with_gap(timedelta(minutes=30)),
        allowed_lateness=timedelta(hours=2),
        accumulation=accumulation,
        aggregate={"events": Count(), "total": Sum("value")},
    )
    by_hand = ByHand(folder, session_pipeline(compute=windows, null_keys="keep"))
    moments: list[Moment] = []
    clock = at("10:00")
    for step in history:
        if step.back and len(moments) > step.back:
            target = require_snapshot(by_hand.tables, by_hand.head().version - step.back)
            restore(by_hand.tables, target, to_millis(clock) + len(moments), keep_stale=step.keep_stale)
        else:
            clock += timedelta(minutes=step.minutes)
            rows = [(user, clock + timedelta(minutes=minute), value) for user, minute, value in step.events]
            by_hand.epoch(*rows, watermark=clock)  # type: ignore[arg-type]
        now = target_of(by_hand, "final").now()
        latest = results.latest(by_hand.rows(results.NAME), KEY)
        moments.append(Moment(now, counted(results.final(latest, now.watermark)), counted(latest)))
    return by_hand, moments


STAYED_AND_CAME_BACK = [
    Step((("ann", -95, 1),)),
    Step((("ann", -149, 1), ("ann", 0, 1)), 75),
    Step(),
    Step(back=2),
    Step(back=1),
]
TWICE_STALE_AND_REMOVED = [
    Step((("ann", -95, 1),), 75),
    Step((("ann", -149, 1), (None, -60, 1)), 75),
    Step(back=1),
    Step(back=2),
    Step((("ann", -149, 1),), 75),
    Step(back=2, keep_stale=False),
]


@pytest.mark.parametrize(
    ("accumulation", "history"),
    [
        pytest.param(Accumulation.ACCUMULATING, TWICE_STALE_AND_REMOVED, id="twice-stale"),
        pytest.param(Accumulation.RETRACTING, STAYED_AND_CAME_BACK, id="came-back", marks=pytest.mark.long),
    ],
)
def test_changes_between_two_moments_add_up_whenever_they_are_read(
    accumulation: Accumulation, history: list[Step]
) -> None:
    """A query that died reads its last batch again when the pipeline has moved on, and gets the same rows."""
    _assert_changes_add_up(accumulation, history)


@pytest.mark.long
@settings(max_examples=40, phases=[Phase.generate])
@given(
    accumulation=st.sampled_from([Accumulation.ACCUMULATING, Accumulation.RETRACTING]),
    history=st.lists(steps, min_size=2, max_size=7),
)
def test_changes_of_drawn_histories_add_up(accumulation: Accumulation, history: list[Step]) -> None:
    _assert_changes_add_up(accumulation, history)


def _assert_changes_add_up(accumulation: Accumulation, history: list[Step]) -> None:
    with TemporaryDirectory() as folder:
        by_hand, moments = lived(Path(folder), accumulation, history)
        began = Moment(Reached.nothing(), Counter(), Counter())
        for view in ("final", "latest"):
            target = target_of(by_hand, view)
            assert counted(rows_of(target, target.rows())) == getattr(moments[-1], view)
            for before, after in [*zip([began, *moments], moments, strict=False), (moments[0], moments[-1])]:
                came, left = changes(target, before.reached, after.reached, counted)
                was, now = getattr(before, view), getattr(after, view)
                assert not left - was, "only what the view had leaves"
                assert was - left + came == now
                assert not came & left, "a row that stays is not told"
