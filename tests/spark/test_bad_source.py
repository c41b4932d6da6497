"""A source that does not match its pipeline: the error names what is wrong, and nothing is half written. Spark's own
hashes are those that this library computes: of decimals up to 38 digits, negative, of any scale, and of texts and bytes
of any length. The SQL of the page about consuming registers table `windows` in Spark's own catalog, and Spark follows
the table.
"""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from tests.lake import DAY0, LOCAL, Lake, at, hourly_pipeline, session_pipeline
from tests.pipelines.standing import rows_of
from tidegate.pipelines.definition.config import WindowsTable
from tidegate.pipelines.errors import TidegateError
from tidegate.pipelines.run.stream import Stream
from tidegate.windowing import Count, EventTimeSessionWindows, Windows
from tidegate.windowing.columnar.hashing import hash_keys
from tidegate.windowing.keys import KeySchema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = pytest.mark.spark

DAY = timedelta(days=1)


@pytest.mark.parametrize("over_rows", ["explode(array(value))", "sum(value)", "row_number() over (order by value)"])
def test_an_expression_over_several_rows_is_refused(spark: SparkSession, lake: Lake, over_rows: str) -> None:
    lake.append(("a", at("10:00"), 1))
    with pytest.raises(TidegateError, match=r"columns\['id'\] of pipeline 'hours'"):
        lake.backfill(spark, hourly_pipeline(columns={"id": over_rows}), DAY0, DAY0 + DAY)


CASES = Path(__file__).parents[1] / "conformance" / "spark_key_groups.json"


def test_the_hashes_of_decimals_in_the_conformance_cases_are_those_of_spark(spark: SparkSession) -> None:
    checks = json.loads(CASES.read_text(encoding="utf-8"))["cases"][0]["checks"]
    decimals = [check for check in checks if check["types"][0].startswith("decimal(")]
    assert max(len(check["key"][0].replace(".", "").lstrip("-0")) for check in decimals) == 38
    hashes = ", ".join(f"xxhash64(cast('{check['key'][0]}' as {check['types'][0]}))" for check in decimals)
    assert list(spark.sql(f"select {hashes}").first() or ()) == [check["xxhash64"] for check in decimals]


def test_texts_and_bytes_of_many_lengths_have_the_hash_of_spark(spark: SparkSession) -> None:
    values = [None if size % 7 == 3 else bytes(65 + (size + i) % 26 for i in range(size)) for size in range(80)]
    rows = ", ".join(f"({number}, {'null' if v is None else repr(v.hex())})" for number, v in enumerate(values))
    hashes = "xxhash64(decode(unhex(h), 'UTF-8')), xxhash64(unhex(h), decode(unhex(h), 'UTF-8'), cast(n as smallint))"
    found = spark.sql(f"select {hashes} from values {rows} as t(n, h) order by n").collect()
    texts = pa.array([None if value is None else value.decode() for value in values])
    single = hash_keys(KeySchema.of(a=pa.string()), [texts], len(values))
    several = KeySchema.of(a=pa.binary(), b=pa.string(), c=pa.int16())
    columns = [pa.array(values, pa.binary()), texts, pa.array(range(len(values)), pa.int16())]
    together = hash_keys(several, columns, len(values))
    assert [tuple(row) for row in found] == list(
        zip(single.view(np.int64).tolist(), together.view(np.int64).tolist(), strict=True)
    )


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
