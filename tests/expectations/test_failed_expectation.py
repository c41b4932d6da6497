"""A failed expectation says what failed: suite, column, limits, description, severity, counts, and failing rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from deltalake import write_deltalake

from tests.expectations.quality_lake import QualityLake, at, hour_lake, pane
from tests.key_search import texts
from tidegate.pipelines.definition.config.opened import warehouse_of
from tidegate.pipelines.ledger.tables import quality
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.ledger.tables.quality import SCHEMA, Example, QualityRow, forget_examples
from tidegate.pipelines.observe.report.run import read_run
from tidegate.pipelines.project.cli import run
from tidegate.pipelines.storage.warehouse import read_table

SUITE = '''
import great_expectations as gx
import great_expectations.expectations as gxe

class ExpectFewEvents(gxe.ExpectColumnValuesToBeBetween):
    """A class as Great Expectations 1 wants it: its column and limits are defaults."""

    column: str = "events"
    max_value: float = 0
    description: str = "An hour has no event."

suite = gx.ExpectationSuite(name="own", expectations=[
    ExpectFewEvents(),
    gxe.ExpectColumnValuesToBeBetween(column="events", min_value=1, max_value=2, severity="warning"),
    gxe.ExpectColumnValuesToBeBetween(column="events", min_value=1, max_value=1000, severity="critical"),
    gxe.ExpectColumnMeanToBeBetween(column="events", max_value=0.5, severity="warning"),
    gxe.ExpectColumnDistinctValuesToBeInSet(column="user", value_set=["z"], severity="info"),
])
'''


def project(lake: QualityLake, folder: Path, suite: str = SUITE, options: str = "") -> PipelineTables:
    """Turn the lake into a project whose pipeline has its own suite, unless the text is empty; return its tables."""
    config = lake.write(folder)
    name, entry = lake.pipeline.name, config.pipelines[lake.pipeline.name]
    module = f"suite_{uuid4().hex}"
    (folder / f"{module}.py").write_text(suite)
    (folder / "tidegate.toml").write_text(
        f'[pipelines.{name}]\nobject = "{entry.object}"\nstart = 2024-03-01\n{options}'
        + (f'suites.final = "{module}:suite"\n' if suite else "")
    )
    return PipelineTables(warehouse_of(config), name)


def checked(folder: Path, *options: str, pipeline: str = "hours") -> int:
    return run(["quality", "check", pipeline, "--config", str(folder / "tidegate.toml"), *options])


@pytest.fixture
def failed(tmp_path: Path) -> tuple[PipelineTables, list[QualityRow]]:
    tables = project(hour_lake(), tmp_path)
    assert checked(tmp_path) == 5
    return tables, [QualityRow.of(row) for row in quality.newest(tables).to_pylist()]


def of_suite(tables: PipelineTables) -> list[QualityRow]:
    """Return the outcomes of the pipeline's own suite in the newest check."""
    rows = [QualityRow.of(row) for row in quality.newest(tables).to_pylist()]
    return [row for row in rows if row.suite == "new final windows: own"]


def test_all_about_a_failure_is_in_columns_of_table_quality_and_in_every_output(
    capsys: pytest.CaptureFixture[str], failed: tuple[PipelineTables, list[QualityRow]], tmp_path: Path
) -> None:
    message = capsys.readouterr().err
    few, between, wide, mean, distinct = of_suite(failed[0])
    assert (few.expectation, few.columns, few.limits) == ("expect_few_events", "events", "max_value 0")
    assert (few.description, few.severity) == ("An hour has no event.", "critical")
    assert (few.failing, few.rows, few.observed) == (3, 3, "3 of 3 rows break it")
    assert few.examples
    assert len(few.examples) == 3
    assert few.examples[0] == Example("user a", "2024-03-01T10:15:00Z to 2024-03-01T11:15:00Z", "events 4")
    assert (between.success, wide.success, between.limits) == (False, True, "min_value 1.0, max_value 2.0")
    assert between.expectation_id == "expect_column_values_to_be_between:events"
    assert wide.expectation_id == "expect_column_values_to_be_between:events#2", "two of one type are told apart"
    assert (mean.failing, mean.limits) == (None, "max_value 0.5")
    assert mean.observed_number == pytest.approx(float(mean.observed))
    assert distinct.examples
    assert {each.value for each in distinct.examples} == {"a", "b"}
    ids = [row.expectation_id for row in failed[1]]
    assert all(ids)
    assert len(set(zip([row.suite for row in failed[1]], ids, strict=True))) == len(ids)
    facts = ("new final windows: own", "expect_few_events of events (max_value 0), critical")
    facts += ("An hour has no event.", "3 of 3 rows", "user a", "2024-03-01T10:15:00Z to 2024-03-01T11:15:00Z")
    assert all(fact in message for fact in facts)
    page = next((tmp_path / ".work" / "quality" / "hours").glob("check-*.html")).read_text()
    assert all(fact.partition(" of events")[0].replace("_", " ") in page or fact in page for fact in facts)
    report = [row for row in read_run(failed[0]).quality if not row.success]
    assert any("user a" in row.message and "max_value 0" in row.message for row in report)


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("condition", "shown"),
    [
        ("Column('user') == 'a'", "Column('user') == 'a'"),
        ("Column('events').is_in([1, 4])", "Column('events').is_in([1, 4])"),
        (
            "(Column('user') == 'a') & Column('events').is_not_null() & (Column('events') >= 1)",
            "(Column('user') == 'a') & (Column('events').is_not_null()) & (Column('events') >= 1)",
        ),
        ("(Column('user') == 'a') | Column('user').is_null()", "(Column('user') == 'a') | (Column('user').is_null())"),
        ("'events > 0', condition_parser='pandas'", "events > 0"),
    ],
)
def test_limits_show_a_condition_as_it_is_written(condition: str, shown: str, tmp_path: Path) -> None:
    suite = f"""
import great_expectations as gx
import great_expectations.expectations as gxe
from great_expectations.expectations.row_conditions import Column

suite = gx.ExpectationSuite(name="own", expectations=[
    gxe.ExpectColumnValuesToBeBetween(column="events", max_value=0, row_condition={condition}),
])
"""
    tables = project(hour_lake(), tmp_path, suite)
    assert checked(tmp_path) == 5
    (own,) = of_suite(tables)
    assert own.limits == f"row_condition {shown}, max_value 0.0"


def test_a_null_and_the_text_null_are_told_apart(tmp_path: Path) -> None:
    lake = hour_lake()
    lake.panes += [pane(user, "10:15", "11:15", epoch=1) for user in (None, "null", r"\N", "")]
    tables = project(lake, tmp_path)
    assert checked(tmp_path) == 5
    few = of_suite(tables)[0]
    assert few.examples
    assert {each.key for each in few.examples} >= {r"user \N", "user null", r"user \\N", "user "}


def test_a_failure_of_our_own_rules_shows_no_internal_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake = hour_lake()
    lake.panes[0] |= {"window_id": 5, "pane": 70}
    lake.panes.append(pane("a", "12:15", "13:16", epoch=2, final_at=at("20:00")))
    tables = project(lake, tmp_path)
    assert checked(tmp_path, "--json") == 5
    said = capsys.readouterr().out
    rows = [QualityRow.of(row) for row in quality.newest(tables).to_pylist()]
    page = next((tmp_path / ".work" / "quality" / "hours").glob("check-*.html")).read_text()
    assert [row for row in rows if not row.success and row.suite == "ledger"]
    for text in (said, page, *(row.message for row in rows)):
        assert not any(each in text for each in ("\0", "\\u0000", "\\x00", "np.", "tidegate.rows"))
    ids = next(row for row in rows if row.expectation == "expect_window_ids_to_name_their_windows")
    assert ids.examples
    assert "window_id 5, computed window_id" in ids.examples[0].value
    ledger = next(row for row in rows if row.suite == "ledger")
    assert ledger.examples
    assert "epoch" in ledger.examples[0].value, "the row is named"


def test_at_most_twenty_rows_are_shown_and_all_are_counted(tmp_path: Path) -> None:
    lake = hour_lake()
    lake.panes += [pane(f"u{number}", "10:15", "11:15", epoch=1) for number in range(40)]
    tables = project(lake, tmp_path)
    assert checked(tmp_path) == 5
    few = of_suite(tables)[0]
    assert (few.failing, few.examples and len(few.examples)) == (43, 20)


def test_examples_are_forgotten(failed: tuple[PipelineTables, list[QualityRow]]) -> None:
    tables = failed[0]
    forget_examples(tables, [texts("nobody")], only_if_named=True)
    assert any(quality.newest(tables)["examples"].to_pylist()), "nothing named that key"
    forget_examples(tables, [texts("a")], only_if_named=True)
    assert not any(quality.newest(tables)["examples"].to_pylist())
    assert quality.newest(tables).schema.names == SCHEMA.names


def test_a_table_of_an_older_version_is_read_and_continued(tmp_path: Path) -> None:
    tables = project(hour_lake(), tmp_path)
    assert checked(tmp_path) == 5
    old = read_table(tables.warehouse, tables.open("quality")).select(SCHEMA.names[:14])
    write_deltalake(tables.path("quality"), old, mode="overwrite", schema_mode="overwrite")
    row: dict[str, Any] = quality.newest(tables).to_pylist()[0]
    assert QualityRow.of(row).subject == " (events)"
    assert read_run(tables).quality_state == "failed"
    forget_examples(tables, [texts("a")])
    assert checked(tmp_path) == 5
    assert quality.newest(tables)["limits"][0].as_py() == "max_value 0"
    json.dumps(quality.newest(tables).to_pylist(), default=str)


@pytest.mark.long
def test_a_check_during_which_a_key_is_forgotten_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It had read the rows of the key before, and would record them afterwards."""
    tables = project(hour_lake(), tmp_path)
    assert checked(tmp_path) == 5
    append = quality.append

    def forget_first(*arguments: Any, **options: Any) -> None:
        monkeypatch.setattr(quality, "append", append)
        assert run(["forget", "hours", "a", "--yes", "--config", str(tmp_path / "tidegate.toml")]) == 0
        append(*arguments, **options)

    monkeypatch.setattr(quality, "append", forget_first)
    checks = len(quality.read(tables))
    assert checked(tmp_path) == 3
    assert len(quality.read(tables)) == checks
    assert not any(quality.read(tables)["examples"].to_pylist())
    assert not [*(tmp_path / ".work" / "quality" / "hours").glob("check-*.html")], "pages of both checks named the key"
    assert checked(tmp_path) == 5
