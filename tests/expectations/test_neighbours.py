"""Expectations that compare windows see the neighbours of new windows, checked each day or all together."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import great_expectations as gx
import great_expectations.expectations as gxe
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tidegate import DeltaSource, Pipeline, Project, Sum, TumblingEventTimeWindows, WatermarkStrategy, Windows
from tidegate.expectations.library import ExpectColumnToChangeByAtMost, ExpectWindowsToFollowEachOther
from tidegate.pipelines.ledger.tables.quality import QualityRow

FIRST = datetime(2026, 3, 1, tzinfo=UTC)
DAY = timedelta(days=1)
SUITE = "tests.expectations.test_neighbours:suite"

suite = gx.ExpectationSuite(
    name="days",
    expectations=[
        ExpectWindowsToFollowEachOther(key=["city"], length=0, severity="warning"),
        ExpectColumnToChangeByAtMost(column="cents", key=["city"], factor=5, severity="warning"),
        gxe.ExpectColumnValuesToBeIncreasing(column="cents", severity="warning"),
        gxe.ExpectColumnValuesToBeUnique(column="cents", severity="warning"),
        gxe.ExpectTableRowCountToBeBetween(min_value=2, severity="warning"),
        gxe.ExpectColumnValuesToBeBetween(column="cents", max_value=5000, severity="warning"),
    ],
)

daily = Pipeline(
    name="daily",
    source=DeltaSource("pay", timestamp="at", changes="correct"),
    key=("city",),
    watermark=WatermarkStrategy.for_bounded_out_of_orderness(timedelta(hours=1)),
    compute=Windows(TumblingEventTimeWindows.of(DAY), aggregate={"cents": Sum("cents")}),
)

waiting = replace(
    daily,
    compute=Windows(TumblingEventTimeWindows.of(DAY), aggregate={"cents": Sum("cents")}, allowed_lateness=3 * DAY),
)

Days = dict[tuple[str, int], int]
"""Value of each city and day."""


@dataclass
class Payments:
    """A source of one payment a city and day, and a project that computes their days."""

    folder: Path
    settings: Mapping[str, Any] = field(default_factory=lambda: {"suites": {"final": SUITE}})
    days: Days = field(default_factory=dict)
    pipeline: Pipeline = daily

    def __post_init__(self) -> None:
        write_deltalake(self._path, _rows({("HH", -30): 1}))

    @property
    def _path(self) -> str:
        return str(self.folder / "pay")

    @property
    def project(self) -> Project:
        return Project(
            warehouse=str(self.folder),
            work=str(self.folder / "work"),
            pipelines=[self.pipeline],
            settings={"daily": dict(self.settings)},
            engine="local",
        )

    def pay(self, day: int, **cents: int) -> None:
        """Add the payments of a day, and run it."""
        added = {(city, day): each for city, each in cents.items()}
        if added:
            write_deltalake(self._path, _rows(added), mode="append")
        self.days |= added
        self.project.backfill("daily", start=FIRST + day * DAY, end=FIRST + (day + 1) * DAY)

    def correct(self, city: str, day: int, cents: int) -> None:
        """Change a payment. The next run takes it over."""
        DeltaTable(self._path).update(predicate=_is(city, day), updates={"cents": str(cents)})
        self.days[city, day] = cents

    def delete(self, city: str, day: int) -> None:
        """Remove a payment. The next run takes it over."""
        DeltaTable(self._path).delete(_is(city, day))
        del self.days[city, day]

    def checked(self, **options: Any) -> dict[str, QualityRow]:
        """Return the outcomes of the suite by the type of the expectation."""
        checks = self.project.quality.check("daily", **options).run.checks
        return {check.expectation: check for check in checks if check.suite.startswith("new ")}


def _rows(days: Days) -> pa.Table:
    return pa.table(
        {
            "city": [city for city, _ in days],
            "at": [FIRST + day * DAY + timedelta(hours=9) for _, day in days],
            "cents": pa.array(days.values(), pa.int64()),
        }
    )


def _is(city: str, day: int) -> str:
    return f"city = '{city}' AND at = '{FIRST + day * DAY + timedelta(hours=9):%Y-%m-%d %H:%M:%S}+00:00'"


def window(day: int) -> str:
    first, last = (f"{FIRST + number * DAY:%Y-%m-%dT%H:%M:%SZ}" for number in (day, day + 1))
    return f"{first} to {last}"


@pytest.fixture
def payments(tmp_path: Path) -> Payments:
    return Payments(tmp_path)


FOLLOW, CHANGE = "expect_windows_to_follow_each_other", "expect_column_to_change_by_at_most"
INCREASING, UNIQUE = "expect_column_values_to_be_increasing", "expect_column_values_to_be_unique"
COUNT, BETWEEN = "expect_table_row_count_to_be_between", "expect_column_values_to_be_between"


def test_a_jump_and_missing_days_fail_though_each_day_is_checked_alone(payments: Payments) -> None:
    payments.pay(0, HH=100)
    assert payments.checked()[CHANGE].success
    payments.pay(1, HH=11_000)
    jump = payments.checked()[CHANGE]
    assert jump.observed == "1 of 1 rows break it"
    (example,) = map(str, jump.examples or ())
    assert example == f"[city HH, {window(1)}, cents 11000, after {window(0)}: cents 100]"
    for day in (2, 3):
        payments.pay(day)
    payments.pay(4, HH=11_001)
    gap = payments.checked()
    assert gap[CHANGE].success, "the jump was reported before"
    assert [str(each) for each in gap[FOLLOW].examples or ()] == [f"[city HH, {window(4)}, after {window(1)}]"]


@pytest.mark.long
def test_a_corrected_day_between_sound_ones_and_the_first_window_of_a_key_pass(payments: Payments) -> None:
    for day in range(4):
        payments.pay(day, HH=100 + day)
    payments.checked()
    payments.correct("HH", 1, 102)
    payments.pay(4, HH=104, B=90)
    outcomes = payments.checked()
    assert all(outcomes[name].success for name in (FOLLOW, CHANGE, INCREASING))
    assert outcomes[FOLLOW].rows == 3, "the corrected day and the two new windows"


@pytest.mark.long
def test_a_correction_is_compared_with_the_day_after_it_and_names_it(payments: Payments) -> None:
    for day in range(4):
        payments.pay(day, HH=100 + day)
    payments.checked()
    payments.correct("HH", 1, 9000)
    payments.pay(4)
    outcomes = payments.checked()
    assert outcomes[CHANGE].observed == "1 of 1 rows break it"
    assert [str(each) for each in outcomes[CHANGE].examples or ()] == [
        f"[city HH, {window(1)}, cents 9000, after {window(0)}: cents 100]",
        f"[city HH, {window(2)}, cents 102, after {window(1)}: cents 9000]",
    ]
    assert not outcomes[BETWEEN].success


@pytest.mark.long
def test_a_deleted_day_leaves_a_gap_though_no_window_is_new(payments: Payments) -> None:
    for day in range(4):
        payments.pay(day, HH=100 + day)
    payments.checked()
    payments.delete("HH", 1)
    payments.pay(4)
    outcomes = payments.checked()
    assert [str(each) for each in outcomes[FOLLOW].examples or ()] == [f"[city HH, {window(2)}, after {window(0)}]"]
    assert BETWEEN not in outcomes, "no window is new"
    payments.pay(5)
    assert FOLLOW not in payments.checked(), "nothing is new, and the gap was reported"


@pytest.mark.long
def test_a_value_that_stood_long_before_is_not_unique(payments: Payments) -> None:
    for day in range(4):
        payments.pay(day, HH=100 + day)
        payments.checked()
    payments.pay(4, B=100)
    outcome = payments.checked()[UNIQUE]
    assert (outcome.observed, [str(each) for each in outcome.examples or ()]) == (
        "1 of 1 rows break it",
        [f"[city B, {window(4)}, cents 100, as city HH, {window(0)}]"],
    )


@pytest.mark.long
def test_rows_are_counted_by_day_whatever_a_check_covers(payments: Payments) -> None:
    payments.pay(0, HH=100, B=90)
    payments.pay(1, HH=101, B=91)
    assert payments.checked()[COUNT].success
    payments.correct("HH", 0, 99)
    payments.pay(2, HH=102)
    outcome = payments.checked()[COUNT]
    assert (outcome.success, outcome.observed) == (False, f"1 in {window(2)}")
    assert payments.checked(all=True)[COUNT].observed == f"1 in {window(2)}"


_REWRITTEN = -1

Pairs = set[tuple[str, int, int]]
"""City and day of a window, and the day of the one before it."""


def pairs(days: Days) -> Pairs:
    found, last = set(), dict[str, int]()
    for city, day in sorted(days):
        if city in last:
            found.add((city, day, last[city]))
        last[city] = day
    return found


def broken(known: Days, now: Days) -> dict[str, set[tuple[Any, ...]]]:
    """Return what each expectation must report: an oracle over the days at the last check and now."""
    new = {each for each in now if known.get(each) != now[each]}
    judged = {
        (city, day, before)
        for city, day, before in pairs(now)
        if (city, day) in new or (city, before) in new or (city, day, before) not in pairs(known)
    }
    ratios = {(city, day, before): now[city, day] / now[city, before] for city, day, before in judged}
    times, counts = Counter(now.values()), Counter(day for _, day in now)
    changed = {day for _, day in new | (known.keys() - now.keys())}
    return {
        FOLLOW: {pair for pair in judged if pair[1] - pair[2] > 1},
        CHANGE: {pair for pair, ratio in ratios.items() if ratio > 5 or ratio < 1 / 5},
        INCREASING: {pair for pair, ratio in ratios.items() if ratio < 1},
        UNIQUE: {each for each in new if times[now[each]] > 1},
        COUNT: {(day,) for day in changed if 0 < counts[day] < 2},
        BETWEEN: {each for each in new if now[each] > 5000},
    }


def reported(outcomes: Mapping[str, QualityRow]) -> dict[str, set[tuple[Any, ...]]]:
    days = {window(day): day for day in range(-40, 40)}
    found: dict[str, set[tuple[Any, ...]]] = {}
    for name, outcome in outcomes.items():
        rows = set[tuple[Any, ...]]()
        for example in outcome.examples or ():
            parts: Iterable[Any] = (example.key.removeprefix("city "), days[example.window])
            if name in (FOLLOW, CHANGE, INCREASING):
                before = example.value.partition("after ")[2].partition(": ")[0]
                parts = (*parts, days[before])
            rows.add((days[example.window],) if name == COUNT else tuple(parts))
        found[name] = rows
        assert outcome.success == (not rows)
    return found


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 30))])
def test_what_is_reported_day_by_day_and_at_once_is_what_an_oracle_says(seed: int, tmp_path: Path) -> None:
    draw, payments, known = random.Random(seed), Payments(tmp_path), Days()
    for day in range(10):
        for _ in range(draw.choice([0, 0, 1, 2])):
            if payments.days:
                city, corrected = draw.choice(sorted(payments.days))
                old = payments.days[city, corrected]
                value = draw.choice([old + 1, 100 + corrected, 9000, 10])
                if (city, corrected) in known and value != old:
                    # A window that was written again is new, even if it has its old value again.
                    known[city, corrected] = _REWRITTEN
                if draw.random() < 0.3:
                    payments.delete(city, corrected)
                else:
                    payments.correct(city, corrected, value)
        cities = [city for city in ("HH", "B", "M") if draw.random() < 0.6]
        payments.pay(day, **{city: draw.choice([100 + day, 100 + day, 100, 9000]) for city in cities})
        if draw.random() < 0.25:
            continue
        expected, found = broken(known, payments.days), reported(payments.checked())
        assert found == {name: rows for name, rows in expected.items() if name in found}, (day, seed)
        assert not any(rows for name, rows in expected.items() if name not in found), (day, seed)
        known = dict(payments.days)
    expected, found = broken({}, payments.days), reported(payments.checked(all=True))
    assert found == expected


def test_a_suite_of_the_table_windows_sees_a_wrong_number_long_before_it_is_final(tmp_path: Path) -> None:
    payments = Payments(tmp_path, {"suites": {"final": SUITE, "windows": SUITE}}, pipeline=waiting)
    payments.pay(0, HH=100)
    payments.pay(1, HH=11_000)
    rows = {
        check.suite: check
        for check in payments.project.quality.check("daily").run.checks
        if check.expectation == CHANGE
    }
    (name,) = rows
    assert name == "new rows of table windows: days", "no window is final yet"
    assert [str(each) for each in rows[name].examples or ()] == [
        f"[city HH, {window(1)}, cents 11000, after {window(0)}: cents 100]"
    ]
    for day in (2, 3):
        payments.pay(day)
    payments.pay(4, HH=11_001)
    rows = {
        check.suite: check
        for check in payments.project.quality.check("daily").run.checks
        if check.expectation == CHANGE
    }
    assert rows["new rows of table windows: days"].success, "it was reported when it appeared"
    assert not rows["new final windows: days"].success
