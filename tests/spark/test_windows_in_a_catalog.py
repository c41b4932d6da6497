"""The SQL of the page about consuming registers table `windows` in Spark's own catalog, and Spark follows the table."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.lake import LOCAL, Lake, at, session_pipeline
from tests.pipelines.standing import rows_of
from tidegate.pipelines.definition.config import WindowsTable
from tidegate.pipelines.run.stream import Stream
from tidegate.windowing import Count, EventTimeSessionWindows, Windows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "consuming.md"
PLACE = "/data/warehouse/visits/windows"


@pytest.mark.long
def test_one_statement_registers_the_table_for_good(spark: SparkSession, tmp_path: Path) -> None:
    (block,) = re.findall(r"^```sql\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert PLACE in block
    windows = Windows(EventTimeSessionWindows.with_gap(timedelta(minutes=30)), aggregate={"clicks": Count()})
    lake, pipeline = Lake(tmp_path), session_pipeline(name="visits", compute=windows)
    with lake.driver(LOCAL, pipeline) as driver:
        driver.windows = WindowsTable(partition_by="day")
        stream = Stream(driver, lambda manifest: None)
        lake.append(("ann", at("10:00"), 1), ("ann", at("10:10"), 1), ("bob", at("13:00"), 1))
        stream.run_available()
        *statements, query = filter(None, map(str.strip, block.replace(PLACE, lake.path("visits/windows")).split(";")))
        try:
            for statement in statements:
                spark.sql(statement)
            assert [tuple(row) for row in spark.sql(query).collect()] == [("ann", 2)]
            lake.append(("cem", at("18:00"), 1))
            stream.run_available()
            assert [tuple(row) for row in spark.sql(query).collect()] == [("ann", 2), ("bob", 1)]
            assert len(rows_of(lake.tables(pipeline))) == 2
        finally:
            spark.sql("DROP TABLE IF EXISTS lake.visits_windows")
            spark.sql("DROP SCHEMA IF EXISTS lake")
