"""Suites for late and rejected rows and for rows of the source: each row is checked once, and a failure has an
effect.
"""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from great_expectations.core import expectationSuiteValidationResultSchema

from tests.lake import Lake, Row, at
from tidegate import Project
from tidegate.pipelines.errors import UsageError

SUITE = """
import great_expectations as gx
import great_expectations.expectations as gxe

suite = gx.ExpectationSuite(name="own", expectations=[{0}])
"""

MODULE = """
from tests.lake import WatermarkStrategy, session_pipeline

visits = session_pipeline(
    name="visits", where="value < 100", watermark=WatermarkStrategy.for_monotonous_timestamps()
)
"""

SETTINGS = """
engine = "local"

[pipelines.visits]
object = "visits:visits"
start = 2024-03-01
"""


def project(folder: Path, **suites: str) -> Project:
    """A project whose pipeline has suites, each of one expectation."""
    (folder / "visits.py").write_text(MODULE)
    places = []
    for kind, expectation in suites.items():
        module = f"{kind}_{uuid4().hex}"
        (folder / f"{module}.py").write_text(SUITE.format(expectation))
        places.append(f'{kind} = "{module}:suite"')
    (folder / "tidegate.toml").write_text(f"{SETTINGS}\n[pipelines.visits.suites]\n" + "\n".join(places) + "\n")
    return Project(folder / "tidegate.toml")


def fed(folder: Path, *rows: Row | tuple[None, Any, int]) -> None:
    Lake(folder).append(*rows)


def seen(checked: dict[str, Any], kind: str) -> list[tuple[int, bool]]:
    """Return the rows and the outcome of each expectation of a suite."""
    return [(row["rows"], row["success"]) for row in checked["checks"] if row["suite"] == f"new {kind} rows: own"]


def checked(of: Project) -> dict[str, Any]:
    return of.quality.check("visits").to_dict()


FEW = 'gxe.ExpectTableRowCountToBeBetween(max_value=1, severity="critical")'
NO_KEY = 'gxe.ExpectColumnValuesToNotBeNull(column="user", severity="warning")'


@pytest.mark.long
def test_each_row_is_seen_once_by_the_first_check_after_its_epoch_also_after_one_that_failed(tmp_path: Path) -> None:
    of = project(tmp_path, late=FEW, rejects=NO_KEY, source=FEW)
    fed(tmp_path, ("ann", at("10:00"), 1), ("bob", at("12:00"), 1))
    fed(tmp_path, (None, at("12:10"), 1), ("ann", at("09:00"), 500))
    of.stream("visits")
    first = checked(of)
    assert seen(first, "source") == [(4, False)], "with rows that are rejected, and those that `where` drops"
    assert seen(first, "rejected") == [(1, False)]
    assert seen(first, "late") == [], "a suite says nothing about no rows"
    assert first["quality"] == "failed"
    fed(tmp_path, ("ann", at("09:00"), 1))
    of.stream("visits")
    second = checked(of)
    assert seen(second, "source") == [(1, True)]
    assert seen(second, "rejected") == []
    assert seen(second, "late") == [(1, True)]
    assert second["quality"] == "passed"
    assert checked(of)["checks"] == second["checks"] or seen(checked(of), "late") == [(1, True)], (
        "a retry sees the same"
    )


def test_a_backfill_has_the_rows_of_its_intervals_and_the_stream_after_it_the_rest(tmp_path: Path) -> None:
    of = project(tmp_path, source=FEW)
    fed(
        tmp_path,
        ("ann", at("10:00"), 1),
        ("bob", at("10:00") + timedelta(days=1), 1),
        ("c", at("10:00") + timedelta(days=2), 1),
    )
    for day, number in (("2024-03-01", 1), ("2024-03-02", 1)):
        of.backfill("visits", day, f"{day[:-1]}{int(day[-1]) + 1}")
        assert seen(checked(of), "source") == [(number, True)]
    fed(tmp_path, ("c", at("10:01") + timedelta(days=2), 1))
    of.stream("visits")
    assert seen(checked(of), "source") == [(2, False)], "the rest of the table, and the new commit"


def test_a_suite_that_names_no_column_of_these_rows_is_refused_by_its_field(tmp_path: Path) -> None:
    fed(tmp_path, ("ann", at("10:00"), 1))
    project(tmp_path).stream("visits")
    for kind, rows in {"late": "late", "rejects": "rejected", "source": "source"}.items():
        of = project(tmp_path, **{kind: 'gxe.ExpectColumnValuesToNotBeNull(column="usr")'})
        told = rf"pipelines.visits.suites.{kind} = .*new {rows} rows have no column 'usr'"
        with pytest.raises(UsageError, match=told):
            of.quality.check("visits")


def test_great_expectations_reads_the_result_of_a_check_and_forget_removes_it(tmp_path: Path) -> None:
    of = project(tmp_path, source='gxe.ExpectColumnValuesToBeInSet(column="user", value_set=["ann"])')
    fed(tmp_path, ("ann", at("10:00"), 1), ("zö é", at("12:00"), 1))
    of.stream("visits")
    answer = checked(of)
    file = Path(answer["validation_result"])
    result = expectationSuiteValidationResultSchema.loads(file.read_text())
    assert (result.success, result.suite_name) == (False, "visits")
    assert result.statistics["evaluated_expectations"] == len(answer["checks"]) == len(result.results)
    (failed,) = result.get_failed_validation_results().results
    assert failed.expectation_config.type == "expect_column_values_to_be_in_set"
    assert failed.expectation_config.kwargs["value_set"] == ["ann"]
    assert failed.expectation_config.meta == {"suite": "new source rows: own"}
    assert failed.result["unexpected_count"] == 1
    assert failed.result["unexpected_percent"] == 50.0
    assert json.loads(file.read_text())["meta"]["epoch"] == answer["epoch"]
    of.forget("visits", ["zö é"])
    assert not file.exists()
