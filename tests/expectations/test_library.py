"""Expectations about windows for suites of one's own, evaluated by Great Expectations alone."""

from __future__ import annotations

from typing import Any

import great_expectations as gx
import pandas as pd
import pytest

from tidegate.expectations import library
from tidegate.expectations.library import (
    ExpectColumnToChangeByAtMost,
    ExpectSessionsToLieApart,
    ExpectWindowsToBeAligned,
    ExpectWindowsToBeAtLeast,
    ExpectWindowsToBeAtMost,
    ExpectWindowsToFollowEachOther,
)
from tidegate.expectations.run import any_rows

HOUR = 3_600_000


def window(user: str | None, start: str, end: str, events: float = 1) -> dict[str, Any]:
    day = "2024-03-01T"
    return {
        "user": user,
        "window_start": pd.Timestamp(f"{day}{start}", tz="UTC"),
        "window_end": pd.Timestamp(f"{day}{end}", tz="UTC"),
        "events": events,
    }


# Out of order, as a table has them.
GOOD = [
    window("a", "11:00", "12:00", 2),
    window("b", "10:00", "11:00", 9),
    window("a", "10:00", "11:00"),
    window(None, "10:00", "11:00"),
]

CASES = [
    (ExpectWindowsToBeAligned(size=HOUR, slide=HOUR), window("c", "10:30", "11:30")),
    (ExpectWindowsToBeAtLeast(length=HOUR), window("c", "10:00", "10:59")),
    (ExpectWindowsToBeAtMost(length=HOUR), window("c", "10:00", "11:01")),
    (ExpectWindowsToFollowEachOther(key=["user"], length=0), window("b", "12:00", "13:00")),
    (ExpectWindowsToFollowEachOther(key=[], length=0), window("b", "12:30", "13:00")),
    (ExpectColumnToChangeByAtMost(column="events", key=["user"], factor=2), window("b", "11:00", "12:00", 4)),
    (ExpectColumnToChangeByAtMost(column="events", key=["user"], factor=2), window(None, "11:00", "12:00", 2.1)),
]


@pytest.mark.parametrize(("rule", "bad"), CASES)
def test_a_rule_holds_for_good_windows_and_names_the_bad_one(rule: Any, bad: dict[str, Any]) -> None:
    for rows, failing in ((GOOD, []), ([*GOOD, bad], [len(GOOD)])):
        suite = gx.ExpectationSuite(name="own", expectations=[rule.copy(deep=True)])
        batch = any_rows().get_batch({"dataframe": pd.DataFrame(rows)})
        (result,) = batch.validate(suite, result_format="COMPLETE").results
        assert result.exception_info.get("raised_exception") in (False, None)
        assert result.result["unexpected_index_list"] == failing
        assert result.success == (not failing)


def test_sessions_of_a_key_lie_apart() -> None:
    rows = pd.DataFrame([window("a", "10:00", "11:00"), window("b", "10:30", "11:00"), window("a", "11:30", "12:00")])
    rule = ExpectSessionsToLieApart(key=["user"])
    assert not rule.broken(rows).any()
    touching = pd.DataFrame([window("a", "10:00", "11:00"), window("a", "11:00", "12:00")])
    assert rule.broken(touching).tolist() == [False, True]


def test_nothing_is_said_about_values_that_have_no_ratio() -> None:
    rows = pd.DataFrame(
        [
            window("a", f"{hour}:00", f"{hour}:30", value)
            for hour, value in ((10, 0), (11, 5), (12, -1), (13, float("nan")), (14, 5))
        ]
    )
    assert not ExpectColumnToChangeByAtMost(column="events", key=["user"], factor=2).broken(rows).any()


def test_each_has_a_description_and_names_its_arguments() -> None:
    for name in {*library.__all__} - {"Rule"}:
        rule = getattr(library, name)
        assert rule.text
        assert "Args:" in rule.__doc__
        assert all(f"{field}:" in rule.__doc__ for field in rule.success_keys)
