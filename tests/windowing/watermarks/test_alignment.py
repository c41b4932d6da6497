from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.windowing.errors import IllegalArgument, IncompatibleSnapshot
from tidegate.windowing.time import MAX_TIMESTAMP
from tidegate.windowing.watermarks import WatermarkAlignment, WatermarkAlignmentParams

REPORTS = st.dictionaries(st.sampled_from("abcd"), st.integers(-100, 100))


def reported(drift: int, **watermarks: int) -> WatermarkAlignment:
    alignment = WatermarkAlignment(drift)
    for source, watermark in watermarks.items():
        alignment.report(source, watermark)
    return alignment


def test_a_source_pauses_when_it_is_further_ahead_than_the_drift() -> None:
    alignment = reported(10, slow=0, near=10, far=11)
    assert alignment.announce() == 10
    assert alignment.paused() == ["far"]
    assert alignment.may_read("near")


def test_everybody_reads_until_the_first_announcement() -> None:
    assert reported(0, slow=0, far=1000).paused() == []


def test_the_limit_moves_only_when_it_is_announced() -> None:
    alignment = reported(10, slow=0, far=11)
    alignment.announce()
    alignment.report("slow", 5)
    assert alignment.paused() == ["far"]
    alignment.announce()
    assert alignment.paused() == []


def test_an_idle_source_holds_nobody_back_until_it_reports_again() -> None:
    alignment = reported(10, slow=0, far=100)
    alignment.mark_idle("slow")
    assert alignment.announce() == 110
    alignment.report("slow", 1)
    assert alignment.announce() == 11
    assert alignment.paused() == ["far"]


def test_a_finished_source_holds_nobody_back() -> None:
    alignment = reported(10, slow=0, far=100)
    alignment.remove("slow")
    alignment.announce()
    assert alignment.paused() == []


def test_a_source_that_has_not_reported_reads() -> None:
    alignment = reported(10, slow=0)
    alignment.announce()
    assert alignment.may_read("new")


def test_when_all_are_idle_there_is_no_limit() -> None:
    alignment = reported(10, slow=0)
    alignment.mark_idle("slow")
    assert alignment.announce() == MAX_TIMESTAMP


def test_a_reported_watermark_never_goes_back() -> None:
    alignment = reported(10, slow=5)
    alignment.report("slow", 3)
    assert alignment.announce() == 15


@given(REPORTS, st.integers(0, 50))
def test_the_slowest_source_always_reads(reports: dict[str, int], drift: int) -> None:
    alignment = reported(drift, **reports)
    alignment.announce()
    for source, watermark in reports.items():
        assert alignment.may_read(source) == (watermark <= min(reports.values()) + drift)


def test_a_snapshot_keeps_watermarks_status_and_limit() -> None:
    alignment = reported(10, slow=0, quiet=-50, far=100)
    alignment.mark_idle("quiet")
    alignment.announce()
    restored = WatermarkAlignment(10)
    restored.restore(json.loads(json.dumps(alignment.snapshot())))
    assert restored.paused() == ["far"]
    assert restored.announce() == 10


def test_unusable_settings_are_named() -> None:
    with pytest.raises(IllegalArgument, match="max_drift"):
        WatermarkAlignment(-1)
    with pytest.raises(IllegalArgument, match="group"):
        WatermarkAlignmentParams("", 1)
    with pytest.raises(IncompatibleSnapshot, match="watermarks"):
        WatermarkAlignment(1).restore({"limit": 1})


@given(
    st.integers(0, 5),
    st.lists(
        st.tuples(
            st.sampled_from(["report", "idle", "remove", "announce", "restore"]),
            st.sampled_from("abc"),
            st.integers(0, 20),
        ),
        max_size=20,
    ),
)
def test_a_source_may_read_up_to_the_drift_ahead_of_the_slowest_active_one(
    drift: int, steps: list[tuple[str, str, int]]
) -> None:
    alignment = WatermarkAlignment(drift)
    watermarks: dict[str, int] = {}
    idle: set[str] = set()
    limit = MAX_TIMESTAMP
    for step, source, watermark in steps:
        match step:
            case "report":
                alignment.report(source, watermark)
                watermarks[source] = max(watermark, watermarks.get(source, watermark))
                idle.discard(source)
            case "idle":
                alignment.mark_idle(source)
                idle.add(source)
            case "remove":
                alignment.remove(source)
                watermarks.pop(source, None)
                idle.discard(source)
            case "announce":
                active = [mark for name, mark in watermarks.items() if name not in idle]
                limit = min(active) + drift if active else MAX_TIMESTAMP
                assert alignment.announce() == limit
            case "restore":
                snapshot = alignment.snapshot()
                alignment = WatermarkAlignment(drift)
                alignment.restore(snapshot)
        assert alignment.paused() == sorted(name for name, mark in watermarks.items() if mark > limit)
