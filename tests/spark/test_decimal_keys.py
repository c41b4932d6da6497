"""Spark's own hash of decimal keys is the one that this library computes, up to 38 digits, negative, of any scale."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

CASES = Path(__file__).parents[1] / "conformance" / "spark_key_groups.json"


def test_the_hashes_of_decimals_in_the_conformance_cases_are_those_of_spark(spark: SparkSession) -> None:
    checks = json.loads(CASES.read_text(encoding="utf-8"))["cases"][0]["checks"]
    decimals = [check for check in checks if check["types"][0].startswith("decimal(")]
    assert max(len(check["key"][0].replace(".", "").lstrip("-0")) for check in decimals) == 38
    hashes = ", ".join(f"xxhash64(cast('{check['key'][0]}' as {check['types'][0]}))" for check in decimals)
    assert list(spark.sql(f"select {hashes}").first() or ()) == [check["xxhash64"] for check in decimals]
