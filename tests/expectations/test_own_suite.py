"""An error in a pipeline's own suite is not a fault of the data. The library's expectations about windows work in Great
Expectations alone. The command `quality` loads no library that a check doesn't use, and a suite can still use them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from string import Template
from typing import Any

import great_expectations as gx
import pandas as pd
import pytest
from deltalake.exceptions import DeltaError
from great_expectations.expectations.registry import get_renderer_impl
from great_expectations.render import LegacyRendererType

from tests.expectations.quality_lake import hour_lake
from tests.expectations.test_failed_expectation import checked, of_suite, project
from tidegate.expectations import library
from tidegate.expectations.invariants.rule import Rule
from tidegate.expectations.invariants.tables import ExpectNoStateBehindWatermark
from tidegate.expectations.library import (
    ExpectColumnToChangeByAtMost,
    ExpectSessionsToLieApart,
    ExpectWindowsToBeAligned,
    ExpectWindowsToBeAtLeast,
    ExpectWindowsToBeAtMost,
    ExpectWindowsToFollowEachOther,
)
from tidegate.expectations.outcome import Outcome
from tidegate.expectations.run import any_rows
from tidegate.expectations.unexpected_rows import first_word, select
from tidegate.pipelines.ledger.tables import quality

HEAD = """
import great_expectations as gx
import great_expectations.expectations as gxe
"""


def suite_of(*expectations: str, before: str = "") -> str:
    listed = "".join(f"    {each},\n" for each in expectations)
    return f"{HEAD}{before}\nsuite = gx.ExpectationSuite(name='own', expectations=[\n{listed}])\n"


BROKEN = [
    (
        "gxe.ExpectColumnValuesToBeBetween(column='evnts', min_value=1, severity='warning')",
        ("expect_column_values_to_be_between", "no column 'evnts'", "Did you mean 'events'?"),
    ),
    ("gxe.ExpectCompoundColumnsToBeUnique(column_list=['user', 'nope'])", ("no column 'nope'",)),
    ("gxe.ExpectColumnPairValuesToBeEqual(column_A='events', column_B='nope')", ("no column 'nope'",)),
    (
        "gxe.ExpectColumnMeanToBeBetween(column='events', min_value={'$PARAMETER': 'least'})",
        ("expect_column_mean_to_be_between", "least", "write the value into the suite"),
    ),
    (
        "gxe.ExpectQueryResultsToMatchComparison(base_query='', comparison_data_source_name='', comparison_query='')",
        ("expect_query_results_to_match_comparison", "UnexpectedRowsExpectation"),
    ),
    (
        "gxe.UnexpectedRowsExpectation(unexpected_rows_query='SELECT * FROM {batch} WHERE nope > 1')",
        ("unexpected_rows_expectation", "nope"),
    ),
    (
        "gxe.UnexpectedRowsExpectation(unexpected_rows_query=' -- x\\nCOPY {batch} TO \"leak.csv\"')",
        ("unexpected_rows_expectation", "begins with 'copy', but a check only reads", "SELECT ... FROM {batch}"),
    ),
    (
        "gxe.UnexpectedRowsExpectation(unexpected_rows_query='SELECT 1 AS a); COPY {batch} TO \"x.csv\"; SELECT (1')",
        ("unexpected_rows_expectation", "can't be evaluated", "single SQL statement"),
    ),
    ("gxe.UnexpectedRowsExpectation(unexpected_rows_query='SELECT 1')", ("'SELECT 1' does not read the windows",)),
    ("gxe.UnexpectedRowsExpectation(unexpected_rows_query='SELECT events - {x} FROM {batch}')", ("all other braces",)),
    ("gxe.ExpectColumnValueLengthsToEqual(column='events', value=3)", ()),
    ("ExpectRaises()", ("expect_raises", "division by zero")),
]
"""Expectations that can't be evaluated, and the message for each; an empty one is evaluated."""

RAISES = """
class ExpectRaises(gxe.ExpectColumnMeanToBeBetween):
    column: str = "events"
    min_value: float = 1

    def _validate(self, *given, **named):
        return {"success": 1 / 0 > 1}
"""


@pytest.mark.first(6)
@pytest.mark.parametrize(("expectation", "said"), BROKEN)
def test_an_expectation_that_cannot_be_evaluated_is_an_error_of_the_suite(
    expectation: str, said: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # One before it fails, and must not be evaluated.
    bad_data = "gxe.ExpectColumnValuesToBeBetween(column='events', max_value=0)"
    tables = project(hour_lake(), tmp_path, suite_of(bad_data, expectation, before=RAISES))
    code = checked(tmp_path, "--json")
    answer = json.loads(capsys.readouterr().out)
    if not said:
        assert (code, answer["error"]) == (5, "QualityFailed")
        return
    assert (code, answer["error"]) == (2, "UsageError"), answer
    assert all(each in answer["message"] for each in said)
    assert len(quality.read(tables)) == 0, "nothing was judged"


def test_a_query_selects_the_rows_that_must_not_be_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = 'SELECT "user", window_start, window_end, events FROM {batch} WHERE events > 3'
    none = "SELECT * FROM {batch} WHERE events > 100"
    rules = [f"gxe.UnexpectedRowsExpectation(unexpected_rows_query='{each}')" for each in (query, none)]
    tables = project(hour_lake(), tmp_path, suite_of(*rules))
    assert checked(tmp_path) == 5
    failed, held = of_suite(tables)
    assert (failed.failing, failed.rows, held.failing, held.success) == (1, 3, 0, True)
    assert failed.examples
    assert str(failed.examples[0]) == "[user a, 2024-03-01T10:15:00Z to 2024-03-01T11:15:00Z, events 4]"


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM {batch} WHERE events > 1 -- all of them",
        "WITH many AS (SELECT * FROM {batch}) SELECT * FROM many WHERE events > 1;",
        "/* one */ (SELECT events FROM {batch} WHERE events > 1)",
    ],
)
def test_a_query_that_only_reads_runs(query: str) -> None:
    assert not {first_word(query)} - {"select", "with", "("}
    assert list(select(query, pd.DataFrame({"events": [1, 2, 3]}))["events"]) == [2, 3]


@pytest.mark.parametrize(
    "query",
    [
        "COPY {batch} TO '%s'",
        "SELECT 1) TO '%s' --",
        "SELECT 1 AS a); COPY (SELECT 1 AS a) TO '%s'; SELECT * FROM (SELECT 1 AS a",
        "CREATE EXTERNAL TABLE leak STORED AS CSV LOCATION '%s'",
    ],
)
def test_no_query_writes_a_file(query: str, tmp_path: Path) -> None:
    with pytest.raises(DeltaError):
        select(query % (tmp_path / "leak.csv"), pd.DataFrame({"events": [1]}))
    assert not [*tmp_path.iterdir()]


def test_a_query_may_select_every_column_of_windows_with_lists_of_texts() -> None:
    rows = pd.DataFrame({"names": [["a", "b"], None], "events": [1, 2], "raw": [[b"x"], []]})
    selected = select("SELECT * FROM {batch} WHERE events > 0", rows)
    assert [None if each is None else list(each) for each in selected["names"]] == [["a", "b"], None]


def test_limits_are_those_of_the_suite_alone(tmp_path: Path) -> None:
    tables = project(hour_lake(), tmp_path, suite_of("gxe.ExpectColumnValuesToBeIncreasing(column='events')"))
    assert checked(tmp_path) == 5
    assert [row.limits for row in of_suite(tables)] == [""]


HOUR = 3_600_000


def window(user: str | None, start: str, end: str, events: float = 1) -> dict[str, Any]:
    day = "2024-03-01T"
    return {
        "user": user,
        "window_start": pd.Timestamp(f"{day}{start}", tz="UTC"),
        "window_end": pd.Timestamp(f"{day}{end}", tz="UTC"),
        "events": events,
    }


# Out of order, as in a table.
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


def rendered(rule: Rule) -> str:
    """Return the description in pages of Great Expectations."""
    _, render = get_renderer_impl(rule.expectation_type, LegacyRendererType.PRESCRIPTIVE)
    (content,) = render(configuration=rule.configuration)
    template = content.string_template
    return Template(template["template"]).substitute(template["params"])


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (ExpectWindowsToBeAtMost(length=5_400_000), "Windows are at most 90 min long."),
        (
            ExpectWindowsToFollowEachOther(key=[], length=3_600_000),
            "There is at most 1 h between two windows of one table.",
        ),
        (
            ExpectWindowsToBeAligned(size=86_400_000, slide=3_600_000),
            "Windows are 1 d long and begin at multiples of 1 h shifted by 0 ms.",
        ),
        (
            ExpectNoStateBehindWatermark(watermark=1_709_272_799_999, lateness=0),
            "State has no contents of a window that ended 0 ms or more before the watermark 2024-03-01T05:59:59.999Z.",
        ),
    ],
)
def test_a_description_shows_times_and_durations_for_people(rule: Rule, text: str) -> None:
    assert Outcome(rule).description == text
    assert rendered(rule) == text


def test_each_duration_and_time_of_a_rule_is_declared() -> None:
    described = [rule for rule in all_rules(Rule) if rule.__module__.startswith("tidegate.")]
    assert len(described) > 20
    for rule in described:
        given = {*rule.lengths, *rule.times}
        assert given <= {*rule.success_keys}
        assert {"size", "slide", "offset", "length", "lateness", "watermark", "since"} & {*rule.success_keys} == given
        assert " ms" not in rule.text


def all_rules(base: type[Rule]) -> list[type[Rule]]:
    return [each for rule in base.__subclasses__() for each in (rule, *all_rules(rule))]


def test_each_has_a_description_and_names_its_arguments() -> None:
    for name in {*library.__all__} - {"Rule", "Needs"}:
        rule = getattr(library, name)
        assert rule.text
        assert "Args:" in rule.__doc__
        assert all(f"{field}:" in rule.__doc__ for field in rule.success_keys)


ROOT = Path(__file__).parent.parent.parent

SUITE = """
import atexit
import json
import sys
from pathlib import Path

import great_expectations as gx
import great_expectations.expectations as gxe
import sqlalchemy


def write_loaded():
    Path(__file__).with_name("loaded.json").write_text(json.dumps(sorted(sys.modules)))


atexit.register(write_loaded)
suite = gx.ExpectationSuite(name="own", expectations=[
    gxe.ExpectColumnValuesToBeBetween(column="events", min_value=1),
    gxe.ExpectColumnValuesToBeInSet(column="user", value_set=["nobody"], severity="warning"),
    gxe.ExpectColumnKLDivergenceToBeLessThan(
        column="user", partition_object={"values": ["a", "b"], "weights": [0.5, 0.5]}, threshold=9.0
    ),
    gxe.UnexpectedRowsExpectation(unexpected_rows_query="SELECT * FROM {batch} WHERE events < 1"),
])
"""


def checked_apart(folder: Path, suite: str) -> tuple[dict[str, bool], set[str]]:
    """Check the hours with a suite in a separate process, and return the outcomes and the modules that it had
    loaded.
    """
    project(hour_lake(), folder, suite)
    command = [sys.executable, "-m", "tidegate", "quality", "check", "hours", "--json"]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    outcomes = {check["expectation"]: check["success"] for check in json.loads(done.stdout)["checks"]}
    return outcomes, set(json.loads((folder / "loaded.json").read_text()))


@pytest.mark.long
def test_a_check_needs_no_spark_and_loads_statistics_for_a_suite_that_uses_them(tmp_path: Path) -> None:
    outcomes, loaded = checked_apart(tmp_path, SUITE)
    assert outcomes["expect_column_kl_divergence_to_be_less_than"] is True
    assert outcomes["expect_column_values_to_be_in_set"] is False
    assert outcomes["unexpected_rows_expectation"] is True
    assert not {"pyspark", "altair.vegalite"} & loaded
    assert {"scipy.stats._stats_py", "sqlalchemy"} <= loaded


@pytest.mark.long
def test_a_check_without_statistics_loads_none(tmp_path: Path) -> None:
    plain = "\n".join(line for line in SUITE.splitlines() if "sqlalchemy" not in line)
    without = plain[: plain.index("    gxe.ExpectColumnKL")] + "])\n"
    _, loaded = checked_apart(tmp_path, without)
    assert not {"pyspark", "sqlalchemy", "altair.vegalite", "scipy.stats._stats_py"} & loaded
