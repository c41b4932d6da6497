"""Differences between the versions of Spark and Delta that Tidegate runs with; no other file checks versions.

Spark is 4.0 or newer, and Delta is a version that has jars for this Spark.
"""

from __future__ import annotations

import re
from contextlib import suppress
from importlib import import_module
from importlib.metadata import version
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from tidegate.pipelines.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

Reader = TypeVar("Reader")

_OLDEST_SPARK = (4, 0)
_FIRST_DELTA_BY_SPARK = (4, 1)
"""First Delta version with separate jars for each Spark version; earlier jars are for Spark 4.0."""
_SCALA = "2.13"
MATCHING_PAIR = "pip install pyspark==4.2.0 delta-spark==4.4.0"
"""Command that installs a tested pair of versions."""

_SEED = 42
"""Seed of the hash by which Spark partitions rows."""
_WORD = 0xFFFFFFFF


def check_spark() -> str:
    """Return the version of the installed pyspark.

    Raises:
        UsageError: it is older than 4.0.
    """
    spark = version("pyspark")
    if _numbers(spark) < _OLDEST_SPARK:
        oldest = ".".join(map(str, _OLDEST_SPARK))
        raise UsageError(
            f"pyspark {spark} is too old: Tidegate needs Spark {oldest} or newer. Install a matching pair, such "
            f"as `{MATCHING_PAIR}`"
        )
    return spark


def delta_coordinates(spark: str, delta: str) -> str:
    """Return the Maven coordinates of Delta's jar.

    Args:
        spark: version of pyspark.
        delta: version of delta-spark.
    """
    by_spark = "" if _numbers(delta) < _FIRST_DELTA_BY_SPARK else f"_{'.'.join(map(str, _numbers(spark)))}"
    return f"io.delta:delta-spark{by_spark}_{_SCALA}:{delta}"


def _numbers(text: str) -> tuple[int, int]:
    major, minor = re.findall(r"\d+", text)[:2]
    return int(major), int(minor)


def to_arrow(schema: StructType) -> pa.Schema:
    """Return the columns of a frame as Arrow columns. A TIMESTAMP is in UTC."""
    from pyspark.sql.pandas import types

    zone: dict[str, Any] = {"timezone": "UTC"} if _numbers(version("pyspark")) >= (4, 2) else {"timestamp_utc": True}
    return types.to_arrow_schema(schema, **zone)


def from_arrow(schema: pa.Schema) -> StructType:
    """Return Arrow columns as columns of a frame. A timestamp without a zone becomes a TIMESTAMP_NTZ."""
    from pyspark.sql.pandas import types

    return types.from_arrow_schema(schema, prefer_timestamp_ntz=True)


def ends_with_what_is_there(reader: type[Reader]) -> type[Reader]:
    """Declare to Spark that a stream reader has `prepareForTriggerAvailableNow`.

    Before Spark 4.2, an available-now query runs a single batch; after a failure it only repeats the failed one.
    """
    with suppress(ImportError):
        import_module("pyspark.sql.streaming.datasource").SupportsTriggerAvailableNow.register(reader)
    return reader


def place_by_number(frame: DataFrame, column: str, partitions: int) -> DataFrame:
    """Move each row to the partition that a column names, and drop the column.

    Args:
        frame: the rows.
        column: an int column, from 0 to `partitions` - 1.
        partitions: number of partitions.
    """
    from pyspark.sql import functions as F

    if hasattr(frame, "repartitionById"):
        return frame.repartitionById(partitions, F.col(column)).drop(column)
    # Spark 4.0 can only partition by a hash, so each number is replaced by one that hashes to its partition.
    values = F.array(*map(F.lit, numbers_by_partition(partitions)))
    placed = frame.withColumn(column, F.element_at(values, F.col(column) + 1))
    return placed.repartition(partitions, F.col(column)).drop(column)


def numbers_by_partition(partitions: int) -> list[int]:
    """Return for each partition the smallest int that Spark's `repartition` sends there."""
    numbers: dict[int, int] = {}
    for number in count():
        if len(numbers) == partitions:
            break
        numbers.setdefault(_hash(number) % partitions, number)
    return [numbers[partition] for partition in range(partitions)]


def _hash(number: int) -> int:
    """Return Spark's `hash` of an int column (Murmur3, 32 bits, signed), for a number that is not negative."""
    mixed = _rotated(number * 0xCC9E2D51 & _WORD, 15) * 0x1B873593 & _WORD
    mixed = (_rotated(_SEED ^ mixed, 13) * 5 + 0xE6546B64) & _WORD
    mixed ^= 4
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        mixed = (mixed ^ mixed >> shift) * factor & _WORD
    mixed ^= mixed >> 16
    return mixed - (1 << 32) if mixed >> 31 else mixed


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> 32 - bits) & _WORD
