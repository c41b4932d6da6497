"""The law of changes over sources that Spark writes: MERGE, deletion vectors, a change feed, overwritten partitions.
Spark writes the source; the pipelines read it without Spark, as their tasks do.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from tests.lake import DAY0, EVENTS, LOCAL, Clock, Lake
from tests.pipelines.correct.pipelines import PIPELINES
from tests.pipelines.correct.walks import Walk, operator
from tests.pipelines.sources.changing import USERS, Changing, Seen
from tests.pipelines.sources.test_change_feed import check
from tidegate.pipelines.definition.config import WindowsTable
from tidegate.pipelines.run.stream import Stream
from tidegate.windowing.time import to_millis

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.long, pytest.mark.spark]


@dataclass
class SparkChanging(Changing):
    """A table by hours of the day, with deletion vectors and a change feed, on which Spark does random things."""

    spark: SparkSession = field(default=cast("Any", None))

    @property
    def name(self) -> str:
        """The table's name in SQL."""
        return f"delta.`{self.lake.path('events')}`"

    def create(self, **properties: str) -> None:
        self.spark.conf.set("spark.sql.session.timeZone", "UTC")
        given = {"enableDeletionVectors": "true", "enableChangeDataFeed": "true", **properties}
        listed = ", ".join(f"'delta.{name}' = '{value}'" for name, value in given.items())
        self.spark.sql(
            f"CREATE TABLE {self.name} (user STRING, at TIMESTAMP, value BIGINT, hour INT) USING delta PARTITIONED BY "
            f"(hour) TBLPROPERTIES ({listed})"
        )
        self.settle()
        self.append()
        self.settle()

    def happen(self) -> str:
        """Let something happen, and return its name."""
        acts: list[Callable[[], None]] = [self.append, self.delete, self.update, self.merge, self.overwrite_hours]
        act = self.draw.choice([*acts, self.replace_hours, self.restore, self.compact, self.rewrite])
        before = self.version
        act()
        for version in range(before + 1, self.version + 1):
            self.settle(version=version)
        return act.__name__

    def rows_of(self, version: int) -> Counter[Seen]:
        """Return the rows of a version, with their numbers."""
        frame = self.spark.read.format("delta").option("versionAsOf", version).load(self.lake.path("events"))
        rows = frame.select("user", "at", "value").toArrow().cast(EVENTS).to_pylist()
        return Counter((row["user"], row["at"], row["value"]) for row in rows)

    def frame(self, count: int) -> DataFrame:
        """Return some random rows."""
        return self.spark.createDataFrame(self.drawn(count)).selectExpr("*", "hour(at) AS hour").coalesce(1)

    def save(self, frame: DataFrame, mode: str, **options: str) -> None:
        frame.write.format("delta").mode(mode).options(**options).save(self.lake.path("events"))

    # --- what happens ------------------------------------------------------------------------

    def append(self) -> None:
        self.save(self.frame(self.draw.randrange(4, 14)), "append")

    def delete(self) -> None:
        """Delete rows, mostly by deletion vectors."""
        self.spark.sql(f"DELETE FROM {self.name} WHERE user = '{self.draw.choice(USERS)}' AND value > 600000")

    def update(self) -> None:
        value = self.draw.choice(["value + 600000", "value"])
        self.spark.sql(f"UPDATE {self.name} SET value = {value} WHERE user = '{self.draw.choice(USERS)}'")

    def merge(self) -> None:
        self.frame(6).groupBy("user", "at", "hour").max("value").createOrReplaceTempView("merged")
        self.spark.sql(
            f"MERGE INTO {self.name} t USING merged s ON t.user = s.user AND t.at = s.at WHEN MATCHED AND t.value > "
            "1000000 THEN DELETE WHEN MATCHED THEN UPDATE SET t.value = s.`max(value)` WHEN NOT MATCHED THEN INSERT "
            "(user, at, value, hour) VALUES (s.user, s.at, s.`max(value)`, s.hour)"
        )

    def overwrite_hours(self) -> None:
        """Overwrite the partitions of the new rows, as loading them does."""
        self.save(self.frame(5), "overwrite", partitionOverwriteMode="dynamic")

    def replace_hours(self) -> None:
        hour = self.draw.randrange(self.hours)
        self.save(self.frame(9).where(f"hour = {hour}"), "overwrite", replaceWhere=f"hour = {hour}")

    def restore(self) -> None:
        self.spark.sql(f"RESTORE TABLE {self.name} TO VERSION AS OF {self.draw.randrange(self.version) + 1}")

    def compact(self) -> None:
        self.spark.sql(f"OPTIMIZE {self.name}")

    def rewrite(self) -> None:
        """Rewrite the files with deletion vectors, without changing a row."""
        self.spark.sql(f"REORG TABLE {self.name} APPLY (PURGE)")


def walked(spark: SparkSession, folder: Path, name: str, seed: int, commits: int) -> None:
    clock = Clock(to_millis(DAY0) + 3_600_000)
    changing = SparkChanging(Lake(folder, clock), random.Random(f"{name} {seed}"), spark=spark)
    changing.create()
    kind = changing.draw.choice(["columnar", "row", "both"])
    with operator(kind), changing.lake.driver(LOCAL, PIPELINES[name]) as driver:
        driver.windows = WindowsTable()
        walk = Walk(PIPELINES[name], changing, driver)
        for _ in range(commits):
            walk.happen()
            Stream(driver, lambda manifest: None).run_available()
            walk.check()
        walk.check_counts()


@pytest.mark.parametrize("name", ["hours with lateness", "sessions with lateness"])
def test_after_each_commit_of_spark_the_windows_are_those_of_a_backfill(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    walked(spark, tmp_path, name, 0, commits=3)


@pytest.mark.long
@pytest.mark.parametrize("name", ["hours", "sessions", "sliding", "hours, discarding", "gaps", "by user"])
def test_after_each_commit_of_a_longer_search_too(spark: SparkSession, tmp_path: Path, name: str) -> None:
    walked(spark, tmp_path, name, 1, commits=6)


@pytest.mark.long
@pytest.mark.parametrize(
    ("properties", "least"),
    [
        # With deletion vectors, Spark implements most commits by vectors, which both methods compare.
        ({}, 1),
        ({"enableDeletionVectors": "false"}, 2),
        ({"enableDeletionVectors": "false", "columnMapping.mode": "name"}, 2),
    ],
    ids=["with vectors", "plain", "mapped"],
)
def test_the_feed_that_spark_writes_tells_what_the_files_tell(
    spark: SparkSession, tmp_path: Path, properties: dict[str, str], least: int
) -> None:
    changing = SparkChanging(Lake(tmp_path, Clock(to_millis(DAY0))), random.Random(str(properties)), spark=spark)
    changing.create(**properties)
    fed = 0
    for act in (changing.update, changing.merge, changing.delete, *[changing.happen] * 4):
        before = changing.version
        act()
        fed += check(changing.lake, before, changing.version)
    check(changing.lake, 1, changing.version)
    assert fed >= least
