"""The suites of the page "Checks of your own", as a project would have them; Great Expectations reads their values."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake
from great_expectations.core import expectationSuiteValidationResultSchema

from tests.docs.step_tables import BLOCK
from tests.lake import at
from tidegate import Project

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "checks.md"
MODULE = """
from datetime import timedelta

from tidegate import Count, DeltaSource, Mean, Pipeline, TumblingEventTimeWindows, WatermarkStrategy, Windows

hours = Pipeline(
    name="hours",
    source=DeltaSource("departures", timestamp="at"),
    key=("origin",),
    watermark=WatermarkStrategy.for_monotonous_timestamps(),
    compute=Windows(
        TumblingEventTimeWindows.of(timedelta(hours=1)), aggregate={"departures": Count(), "delay": Mean("delay")}
    ),
)
"""
Departure = tuple[str | None, datetime, float]


def departed(folder: Path, *rows: Departure) -> None:
    origins, times, delays = zip(*rows, strict=True)
    columns = {
        "origin": pa.array(origins, pa.string()),
        "at": pa.array(times, pa.timestamp("us", tz="UTC")),
        "delay": pa.array(delays, pa.float64()),
    }
    write_deltalake(folder / "warehouse" / "departures", pa.table(columns), mode="append")


def test_the_suites_of_the_page_count_the_rows_of_each_kind_and_great_expectations_reads_the_results(
    tmp_path: Path,
) -> None:
    text = PAGE.read_text(encoding="utf-8")
    settings = text.partition("```toml\n")[2].partition("```")[0]
    (tmp_path / "tidegate.toml").write_text(f'engine = "local"\n{settings}')
    (tmp_path / "flights.py").write_text(MODULE)
    (tmp_path / "checks.py").write_text("\n".join(BLOCK.findall(text)))
    project = Project(tmp_path / "tidegate.toml")
    first = [("JFK", at("10:00") + timedelta(minutes=5 * number), 1.0) for number in range(3)]
    departed(tmp_path, *first, ("LGA", at("10:30"), 3.0), (None, at("10:40"), 0.0), ("EWR", at("12:00"), 0.0))
    project.stream("hours")
    departed(tmp_path, ("JFK", at("09:00"), 1.0), ("JFK", at("09:00", 1), 1.0))
    project.stream("hours")
    checked = project.quality.check("hours")
    file = Path(checked.to_dict()["validation_result"])
    result = expectationSuiteValidationResultSchema.loads(file.read_text())
    told = {
        each.expectation_config.meta["suite"]: (each.success, each.result["observed_value"])
        for each in result.results
        if each.expectation_config.type == "expect_table_row_count_to_be_between"
    }
    assert told == {
        "new final windows: hours": (True, 3),
        "new late rows: late": (True, 1),
        "new rejected rows: rejects": (True, 1),
        "new source rows: source": (True, 8),
    }
    assert "expect_column_values_to_not_be_in_set" in {
        each.expectation_config.type for each in result.get_failed_validation_results().results
    }, "the row without a key"
    scope: dict[str, object] = {}
    exec(compile((tmp_path / "checks.py").read_text(), "checks.md", "exec"), scope)
    assert "expect_column_values_to_not_be_in_set" in scope["failed"](str(file))  # type: ignore[operator]
