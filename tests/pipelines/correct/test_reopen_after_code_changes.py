"""Late rows are reopened after a change of a field that may change freely: no element is counted twice or lost."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from tests.lake import at, hourly_pipeline, session_pipeline
from tests.pipelines.by_hand import ByHand
from tests.pipelines.correct.arrivals import Arrivals
from tests.remedies import remedy_of
from tidegate.pipelines import Pipeline
from tidegate.pipelines.correct.request import Selection
from tidegate.pipelines.definition import results
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.remedy import Act
from tidegate.windowing import (
    CalendarEventTimeWindows,
    Count,
    SlidingEventTimeWindows,
    Sum,
    TumblingEventTimeWindows,
    Windows,
)
from tidegate.windowing.assigners import WindowAssigner
from tidegate.windowing.columnar.plan import OperatorChoice
from tidegate.windowing.time import MIN_TIMESTAMP, to_millis
from tidegate.windowing.triggers import EventTimeTrigger

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)

KINDS = ("tumbling", "sliding", "sessions", "row by row")


def each_once(*columns: Sequence[Any]) -> list[Any]:
    """Return all combinations; those that use no value for the first time are in the long form."""
    longest = max(map(len, columns))
    quick = {tuple(column[number % len(column)] for column in columns) for number in range(longest)}
    return [
        pytest.param(*case, marks=() if case in quick else pytest.mark.long) for case in itertools.product(*columns)
    ]


def over(assigner: WindowAssigner, **options: object) -> Pipeline:
    aggregate = {"events": Count(), "total": Sum("value")}
    return hourly_pipeline(compute=Windows(assigner, aggregate=aggregate, **options))  # type: ignore[arg-type]


def tumbling(hours: int) -> Pipeline:
    return over(TumblingEventTimeWindows.of(hours * HOUR))


def sliding(size: int, slide: int) -> Pipeline:
    return over(SlidingEventTimeWindows.of(size * MINUTE, slide * MINUTE))


def changed(folder: Path, before: Pipeline, after: Pipeline) -> Arrivals:
    """Two windows of ann, and a row that was too late for the first; then the code changes, and the stream
    continues.
    """
    arrivals = Arrivals(ByHand(folder, before))
    arrivals.commit(("ann", at("00:10"), 1), ("ann", at("01:10"), 10), watermark=at("03:00"))
    arrivals.commit(("ann", at("00:20"), 100), ("ann", at("03:10"), 1000), watermark=at("03:30"))
    arrivals.by_hand.pipeline = after
    arrivals.commit(("ann", at("10:10"), 1), watermark=at("10:00"))
    return arrivals


def counted(arrivals: Arrivals) -> int:
    """Return the number of elements in the newest results."""
    return sum(results.latest(arrivals.by_hand.rows("results"), ("user",))["events"].to_pylist())


@pytest.mark.first(3)
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (tumbling(1), tumbling(2)),
        (tumbling(2), tumbling(1)),
        (tumbling(1), over(TumblingEventTimeWindows.of(HOUR, 30 * MINUTE))),
        (tumbling(1), over(CalendarEventTimeWindows.days("Europe/Berlin"))),
        (sliding(60, 20), sliding(60, 30)),
        (sliding(60, 20), sliding(40, 20)),
        (tumbling(1), sliding(90, 60)),
    ],
    ids=["longer", "shorter", "offset", "calendar", "slide", "size", "assigner"],
)
def test_windows_of_another_shape_are_not_computed_beside_those_that_stand(
    tmp_path: Path, before: Pipeline, after: Pipeline
) -> None:
    arrivals = changed(tmp_path, before, after)
    before = counted(arrivals)
    with pytest.raises(Refused, match=r"window of 'ann' from 2024-0.* was computed before compute.assigner changed"):
        arrivals.reopen()
    assert counted(arrivals) == before


@pytest.mark.first(1)
@pytest.mark.parametrize(("before", "after"), [(tumbling(1), tumbling(2)), (sliding(60, 20), sliding(60, 30))])
def test_late_rows_from_after_the_change_are_reopened_as_the_message_says(
    tmp_path: Path, before: Pipeline, after: Pipeline
) -> None:
    arrivals = changed(tmp_path, before, after)
    arrivals.commit(("ann", at("18:10"), 1), watermark=at("18:00"))
    arrivals.commit(("ann", at("10:20"), 1), watermark=at("18:00"))
    with pytest.raises(Refused) as refused:
        arrivals.reopen()
    made = arrivals.reopen(Selection(start=remedy_of(refused, Act.REOPEN_FROM).start))
    assert made.counters["reopened"] == 1


def test_late_rows_in_a_chain_of_windows_are_refused_together(tmp_path: Path) -> None:
    arrivals = changed(tmp_path, sliding(60, 20), sliding(60, 30))
    arrivals.commit(("ann", at("18:10"), 1), watermark=at("18:00"))
    chain = [("ann", at("02:00") + number * 20 * MINUTE, 1) for number in range(30)]
    arrivals.commit(*chain, ("ann", at("15:00"), 1), watermark=at("18:00"))
    with pytest.raises(Refused) as refused:
        arrivals.reopen(Selection(start=to_millis(at("05:00"))))
    made = arrivals.reopen(Selection(start=remedy_of(refused, Act.REOPEN_FROM).start))
    assert made.counters["reopened"] == 1


def test_a_window_that_is_open_from_before_the_change_counts_its_elements_itself(tmp_path: Path) -> None:
    arrivals = Arrivals(ByHand(tmp_path, tumbling(6)))
    arrivals.commit(("ann", at("00:10"), 1), watermark=at("03:30"))
    arrivals.by_hand.pipeline = tumbling(1)
    arrivals.commit(("ann", at("00:20"), 1), watermark=at("03:30"))
    with pytest.raises(Refused, match="from 2024-03-01T00:00:00Z to 2024-03-01T06:00:00Z was computed before"):
        arrivals.reopen()
    arrivals.by_hand.pipeline = tumbling(6)
    arrivals.reopen()
    arrivals.commit(watermark=at("12:00"))
    assert counted(arrivals) == 2, "taking the change back is a way"


def test_another_key_is_not_kept_from_its_windows(tmp_path: Path) -> None:
    arrivals = Arrivals(ByHand(tmp_path, tumbling(1)))
    arrivals.commit(("ann", at("00:10"), 1), watermark=at("03:00"))
    arrivals.commit(("bob", at("00:20"), 1), watermark=at("03:00"))
    arrivals.by_hand.pipeline = tumbling(2)
    assert arrivals.reopen() is not None
    assert counted(arrivals) == 2


@pytest.mark.first(2)
@pytest.mark.parametrize("gap", [20, 40, 60, 120], ids="a gap of {} minutes".format)
def test_sessions_are_reopened_with_the_gap_of_today(tmp_path: Path, gap: int) -> None:
    """Sessions that a longer gap connects, and sessions that a shorter one divides."""
    arrivals = Arrivals(ByHand(tmp_path, session_pipeline(40 * MINUTE)))
    rows = [("ann", at(time), 1) for time in ("00:10", "00:45", "01:40", "02:40", "08:00")]
    arrivals.commit(*rows, ("bob", at("00:10"), 1), watermark=at("05:00"))
    arrivals.commit(("ann", at("00:20"), 1), ("ann", at("02:30"), 1), watermark=at("05:00"))
    arrivals.by_hand.pipeline = session_pipeline(gap * MINUTE)
    assert arrivals.reopen() is not None
    arrivals.commit(("ann", at("20:00"), 1), watermark=at("19:00"))
    late = (at("00:20"), at("02:30"))
    expected = arrivals.in_event_order()
    reopened = [row for row in expected if row[0] == "ann" and any(row[1] <= time < row[2] for time in late)]
    assert set(reopened) <= set(arrivals.final())
    assert counted(arrivals) == 8, "every element is in one session, those of before the change among them"


def test_a_session_cut_by_a_shorter_gap_stays_open_where_its_last_part_is(tmp_path: Path) -> None:
    arrivals = Arrivals(ByHand(tmp_path, session_pipeline(60 * MINUTE)))
    arrivals.commit(("ann", at("10:00"), 1), ("ann", at("10:40"), 1), ("ann", at("11:20"), 1), watermark=at("11:40"))
    arrivals.commit(("ann", at("09:00"), 1), watermark=at("11:40"))
    assert not arrivals.by_hand.rows("late").num_rows, "it joined the open session"
    arrivals.commit(("ann", at("07:00"), 1), watermark=at("11:40"))
    arrivals.commit(("ann", at("08:00"), 1), watermark=at("11:40"))
    arrivals.by_hand.pipeline = session_pipeline(30 * MINUTE)
    assert arrivals.reopen() is not None
    arrivals.commit(("ann", at("11:30"), 1), watermark=at("11:50"))
    arrivals.commit(("ann", at("20:00"), 1), watermark=at("19:00"))
    assert counted(arrivals) == 7
    assert arrivals.final() == arrivals.in_event_order()


LATER = [("ann", at("10:30"), 100), ("bob", at("10:40"), 200)]
"""For windows that were published before the code changed."""


def lasting(kind: str, minutes: int) -> Pipeline:
    """Windows of one kind with an allowed lateness."""
    lateness = {"allowed_lateness": minutes * MINUTE}
    if kind == "sessions":
        return session_pipeline(**lateness)  # type: ignore[arg-type]
    if kind == "sliding":
        return over(SlidingEventTimeWindows.of(HOUR, 20 * MINUTE), **lateness)
    return over(TumblingEventTimeWindows.of(HOUR), **lateness)


@pytest.fixture
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The kinds of windows; those computed row by row are tumbling windows in the row operator."""
    if request.param == "row by row":
        monkeypatch.setattr(
            "tidegate.pipelines.epoch.shard.choose_operator", lambda compute: OperatorChoice(False, "a test")
        )
    return str(request.param)


def went_on(folder: Path, kind: str, before: int, after: int) -> Arrivals:
    """Windows that were published and cleaned up, then a longer lateness, and elements for these windows."""
    arrivals = Arrivals(ByHand(folder, lasting(kind, before)))
    arrivals.commit(("ann", at("10:10"), 1), ("bob", at("10:10"), 2), watermark=at("13:30"))
    arrivals.by_hand.pipeline = lasting(kind, after)
    arrivals.commit(*LATER, watermark=at("13:30"))
    return arrivals


@pytest.mark.first(2)
@pytest.mark.parametrize(("kind", "before"), each_once(KINDS, (0, 30)), indirect=["kind"])
def test_a_window_that_was_closed_does_not_begin_anew_when_the_lateness_grows(
    tmp_path: Path, kind: str, before: int
) -> None:
    arrivals = went_on(tmp_path, kind, before, 600)
    late = arrivals.by_hand.rows("late")
    assert sorted(late["value"].to_pylist()) == [100, 200]
    assert set(late["reason"].to_pylist()) <= {"late", "windows_passed"}
    published = arrivals.by_hand.rows("results")
    assert set(published["epoch"].to_pylist()) == {1}, "what was published stands"
    # What is closed stays closed, however many epochs of the new code follow.
    arrivals.commit(("ann", at("10:50"), 400), watermark=at("13:40"))
    assert sorted(arrivals.by_hand.rows("late")["value"].to_pylist()) == [100, 200, 400]
    assert arrivals.reopen() is not None
    arrivals.commit(("ann", at("10:55"), 1), watermark=at("13:50"))
    assert len(arrivals.by_hand.rows("late")) == 3, (
        "a window that was reopened takes elements as long as code allows it"
    )
    arrivals.commit(("ann", at("23:59"), 1), watermark=at("23:58"))
    assert arrivals.final() == arrivals.in_event_order()


@pytest.mark.first(2)
@pytest.mark.parametrize("kind", ["tumbling", "sliding", "sessions", "row by row"], indirect=True)
def test_windows_that_end_after_the_change_are_open_for_the_new_lateness(tmp_path: Path, kind: str) -> None:
    arrivals = went_on(tmp_path, kind, 0, 600)
    arrivals.commit(("ann", at("15:10"), 1), watermark=at("18:00"))
    arrivals.commit(("ann", at("15:20"), 2), ("bob", at("15:20"), 2), watermark=at("18:30"))
    assert len(arrivals.by_hand.rows("late")) == 2


def test_a_lateness_that_stays_closes_nothing_more(tmp_path: Path) -> None:
    """Code that changed in another place accepts what the lateness allows."""
    arrivals = Arrivals(ByHand(tmp_path, lasting("tumbling", 300)))
    arrivals.commit(("ann", at("10:10"), 1), watermark=at("13:30"))
    arrivals.by_hand.pipeline = over(
        TumblingEventTimeWindows.of(HOUR), allowed_lateness=300 * MINUTE, trigger=EventTimeTrigger.create()
    )
    arrivals.commit(("bob", at("10:20"), 1), watermark=at("13:30"))
    assert not arrivals.by_hand.rows("late").num_rows


@pytest.mark.parametrize("kind", ["tumbling", "sessions", "row by row"], indirect=True)
def test_the_tests_of_closed_windows_find_an_operator_that_forgets_them(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.pipelines.epoch.plan.closed_by", lambda *snapshot: MIN_TIMESTAMP)
    arrivals = went_on(tmp_path, kind, 0, 600)
    assert not arrivals.by_hand.rows("late").num_rows
    published = arrivals.by_hand.rows("results").filter(pc.field("epoch") == 2)
    assert published["events"].to_pylist() == [1, 1], "windows of one element stand in for those that were published"


def test_a_manifest_says_what_is_closed(tmp_path: Path) -> None:
    arrivals = Arrivals(ByHand(tmp_path, lasting("tumbling", 0)))
    first = arrivals.commit(("ann", at("10:10"), 1), watermark=at("13:30"))
    assert first.closed_through == to_millis(at("13:30"))
    for minutes, closed in ((60, "13:30"), (0, "13:30"), (600, "13:30")):
        arrivals.by_hand.pipeline = lasting("tumbling", minutes)
        assert arrivals.commit(watermark=at("13:30")).closed_through == to_millis(at(closed))
    assert arrivals.commit(watermark=at("23:50")).closed_through == to_millis(at("13:50"))


@pytest.mark.first(2)
@pytest.mark.parametrize(("kind", "minutes"), each_once(KINDS, ((0, 60), (60, 300), (60, 0))), indirect=["kind"])
def test_open_windows_are_cleaned_by_the_lateness_of_today(tmp_path: Path, kind: str, minutes: tuple[int, int]) -> None:
    before, after = minutes
    arrivals = Arrivals(ByHand(tmp_path, lasting(kind, before)))
    arrivals.commit(("ann", at("10:10"), 1), ("bob", at("09:10"), 1), watermark=at("10:20"))
    arrivals.by_hand.pipeline = lasting(kind, after)
    arrivals.commit(watermark=at("11:30"))
    is_left = bool(arrivals.by_hand.head().manifest.counters["open_windows"])
    assert is_left == (after > 0), "those of ann that ended wait for as long as the code says"
    arrivals.commit(watermark=at("18:00"))
    assert [user for user in arrivals.by_hand.rows("state")["user"].to_pylist() if user] == []
    assert arrivals.final() == arrivals.in_event_order()
