"""Rules, queries and conditions of a suite that compare windows, and what they hold back."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import ClassVar

import great_expectations as gx
import great_expectations.expectations as gxe
import pandas as pd
import pytest
from great_expectations.expectations.row_conditions import Column

from tests.expectations.test_neighbours import DAY, FIRST, Payments, window
from tests.pipelines.by_hand import ByHand
from tests.pipelines.quiet import quiet_pipeline
from tidegate.expectations.library import ExpectWindowsToFollowEachOther, Needs, Rule
from tidegate.expectations.neighbours import NewWindows
from tidegate.expectations.pinned import pin
from tidegate.expectations.run import any_rows, validate
from tidegate.expectations.suites import windows_suite
from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.ledger.tables import quality
from tidegate.pipelines.ledger.tables.quality import QualityRow

PLACE = "tests.expectations.test_needs"


class ExpectToRise(Rule):
    """A rule of a user, without a field for the key."""

    needs: ClassVar[Needs] = "neighbours"

    def broken(self, rows: pd.DataFrame) -> pd.Series:
        return rows.groupby("city")["cents"].diff() < 0


class ExpectNoFall(gxe.UnexpectedRowsExpectation):
    """The same in SQL."""

    needs: ClassVar[Needs] = "neighbours"
    unexpected_rows_query: str = (
        "SELECT * FROM (SELECT city, window_start, window_end, cents, "
        "lag(cents) OVER (PARTITION BY city ORDER BY window_start) AS old FROM {batch}) WHERE cents < old"
    )


class ExpectMeanOfAll(gxe.ExpectColumnMeanToBeBetween):
    """A value of all standing windows; `needs` without ClassVar counts, too."""

    needs = "standing"


falls = gx.ExpectationSuite(
    name="falls",
    expectations=[
        ExpectToRise(severity="warning"),
        ExpectNoFall(severity="warning"),
        gxe.ExpectColumnValuesToBeIncreasing(column="cents", severity="warning"),
    ],
)


@pytest.fixture
def payments(tmp_path: Path) -> Payments:
    return Payments(tmp_path, {"suites": {"final": f"{PLACE}:falls"}})


def test_rules_and_queries_of_a_user_see_neighbours_too(payments: Payments) -> None:
    payments.pay(0, HH=100, B=5)
    payments.pay(1, HH=101)
    assert all(row.success for row in payments.checked().values())
    payments.pay(2, HH=90, B=6)
    for name, row in payments.checked().items():
        assert (row.success, row.failing, row.rows) == (False, 1, 2), name
        assert row.examples
        assert (row.examples[0].key, row.examples[0].window) == ("city HH", window(2))
        assert f"after {window(1)}" in row.examples[0].value
    payments.pay(3, HH=95)
    assert all(row.success for row in payments.checked().values()), "the fall was reported"


blind = gx.ExpectationSuite(
    name="blind",
    expectations=[
        gxe.UnexpectedRowsExpectation(
            unexpected_rows_query="SELECT city, lag(cents) OVER (ORDER BY window_start) AS old FROM {batch}"
        )
    ],
)


class ExpectUnnamed(ExpectNoFall):
    unexpected_rows_query: str = "SELECT cents FROM {batch} WHERE cents > 1"


class ExpectUnknown(ExpectToRise):
    needs: ClassVar[Needs] = "everything"  # type: ignore[assignment]


unnamed = gx.ExpectationSuite(name="unnamed", expectations=[ExpectUnnamed()])
unknown = gx.ExpectationSuite(name="unknown", expectations=[ExpectUnknown()])


@pytest.mark.parametrize(
    ("suite", "said"),
    [
        ("blind", "compares rows, but it gets the final windows of one check: declare needs"),
        ("unnamed", "select city, window_start, too"),
        ("unknown", "needs = 'everything' is not one of nothing, neighbours, partition, standing"),
    ],
)
def test_an_expectation_that_would_be_blind_is_an_error_of_the_suite(suite: str, said: str, tmp_path: Path) -> None:
    payments = Payments(tmp_path, {"suites": {"final": f"{PLACE}:{suite}"}})
    payments.pay(0, HH=100)
    with pytest.raises(UsageError, match=said):
        payments.checked()


mixed = gx.ExpectationSuite(
    name="mixed",
    expectations=[
        gxe.ExpectColumnValuesToBeIncreasing(column="cents", row_condition=Column("city") == "HH", severity="warning"),
        ExpectMeanOfAll(column="cents", max_value=100, severity="warning"),
        ExpectWindowsToFollowEachOther(key=[], length=0, severity="warning"),
        gxe.ExpectColumnValuesToBeUnique(column="cents", mostly=0.5, severity="warning"),
    ],
)


def test_conditions_shares_and_coarser_keys(tmp_path: Path) -> None:
    payments = Payments(tmp_path, {"suites": {"final": f"{PLACE}:mixed"}})
    payments.pay(0, HH=100, B=90)
    assert all(row.success for row in payments.checked().values())
    payments.pay(1, B=80)
    assert all(row.success for row in payments.checked().values()), "B falls, but the condition is about HH"
    payments.pay(2)
    payments.pay(3, HH=80, B=1000)
    rows = {name.removeprefix("expect_"): row for name, row in payments.checked().items()}
    assert not rows["column_values_to_be_increasing"].success
    assert rows["mean_of_all"].observed_number == (100 + 90 + 80 + 80 + 1000) / 5
    (gap,) = rows["windows_to_follow_each_other"].examples or ()
    assert (gap.window, gap.value.partition("city")[0]) == (window(3), "after ") or gap.value == f"after {window(1)}"
    assert rows["column_values_to_be_unique"].success, "half of the new values are new"
    payments.pay(4, HH=80)
    assert not payments.checked()["expect_column_values_to_be_unique"].success


critical = gx.ExpectationSuite(
    name="critical",
    expectations=[
        gxe.ExpectColumnValuesToBeIncreasing(column="cents"),
        gxe.ExpectTableRowCountToBeBetween(min_value=2, severity="critical"),
    ],
)


def test_only_the_partition_of_the_new_one_of_two_windows_is_held_back(tmp_path: Path) -> None:
    payments = Payments(tmp_path, {"suites": {"final": f"{PLACE}:critical"}, "hold": "partitions"})
    for day in range(3):
        payments.pay(day, HH=100 + day, B=100 + day)
    mark = payments.project.quality.check("daily", partitions="day").changed
    assert mark is not None
    payments.correct("HH", 1, 150)
    payments.pay(3, HH=200, B=200)
    payments.pay(4, HH=201)
    told = payments.project.quality.check("daily", partitions="day", since=json.dumps(mark.mark.to_dict())).changed
    assert told is not None
    held = {f"{FIRST + day * DAY:%Y-%m-%dT%H:%M:%S}" for day in (1, 4)}
    assert {*(told.to_dict()["held_keys"] or ())} == held, "day 2, which seems to fall, did not change"
    assert told.to_dict()["keys"] == [f"{FIRST + 3 * DAY:%Y-%m-%dT%H:%M:%S}"]


def test_an_acknowledged_window_is_compared_no_more(payments: Payments) -> None:
    payments.pay(0, HH=100)
    payments.pay(1, HH=9000)
    payments.project.quality.acknowledge("daily", where="cents = 9000", reason="a refund that was booked twice")
    payments.pay(2, HH=101)
    assert all(row.success for row in payments.checked().values())


def test_rows_of_a_function_are_compared_by_their_time(tmp_path: Path) -> None:
    made = ByHand(tmp_path, quiet_pipeline())
    suite = gx.ExpectationSuite(name="own", expectations=[gxe.ExpectColumnValuesToBeIncreasing(column="total")])
    found = []
    for number, value in enumerate((5, -3, 1)):
        at = FIRST + timedelta(hours=number)
        made.epoch(("ann", at, value), ("bob", at, 1), watermark=at + timedelta(minutes=59))
        pinned = pin(made.tables, made.pipeline)
        own = windows_suite("new", suite, NewWindows(pinned, "day"))
        assert own
        (outcome,) = validate(any_rows(), own, pinned.key)
        found.append(
            (outcome.rows, [(example.key, example.value.partition(", after")[0]) for example in outcome.examples])
        )
        about = ("check", FIRST, pinned.manifest.timeline, pinned.manifest.epoch, "all", "all", "", "critical", True)
        row = QualityRow(*about, "", 0, 0, 0, proof=pinned.proves.to_json())
        quality.append(made.tables, [row])
    assert found == [(2, []), (2, [("user ann", "total 2")]), (2, [])]
