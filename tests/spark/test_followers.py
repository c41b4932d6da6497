"""A stream of Spark follows the change feed of table `windows` through corrections, restores and erasure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from tests.pipelines.chain import Chain, Row, rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

MERGE = """
MERGE INTO delta.`{target}` AS kept
USING (
    SELECT * FROM (
        SELECT *, row_number() OVER (
            PARTITION BY user, window_start, window_end ORDER BY _commit_version DESC, _change_type DESC
        ) AS nth FROM changes
    ) WHERE nth = 1
) AS new
ON kept.user <=> new.user AND kept.window_start <=> new.window_start AND kept.window_end <=> new.window_end
WHEN MATCHED AND new._change_type = 'delete' THEN DELETE
WHEN MATCHED THEN UPDATE SET *
WHEN NOT MATCHED AND new._change_type = 'insert' THEN INSERT *
"""


@dataclass
class SparkCopy:
    """A copy that a stream maintains with MERGE, as docs/guide/consuming.md shows."""

    spark: SparkSession
    source: str
    target: str

    def follow(self) -> None:
        if not DeltaTable.is_deltatable(self.target):
            self.spark.read.format("delta").load(self.source).limit(0).write.format("delta").save(self.target)
        changes = self.spark.readStream.format("delta").option("readChangeFeed", "true").load(self.source)
        query = changes.writeStream.foreachBatch(self._keep).option("checkpointLocation", f"{self.target}.checkpoint")
        query.trigger(availableNow=True).start().awaitTermination()

    def _keep(self, batch: DataFrame, number: int) -> None:
        batch.createOrReplaceTempView("changes")
        batch.sparkSession.sql(MERGE.format(target=self.target))

    def erase(self, user: str) -> None:
        self.spark.sql(f"DELETE FROM delta.`{self.target}` WHERE user = '{user}'")

    def rows(self) -> Counter[Row]:
        return rows_of(DeltaTable(self.target).to_pyarrow_table())


@pytest.mark.parametrize("seed", [2, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 12))])
def test_a_stream_of_spark_follows_corrections_restores_and_erasure(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    chain = Chain(tmp_path, seed)
    chain.copies = {"visits": SparkCopy(spark, chain.path("visits/windows"), str(tmp_path / "copy"))}
    chain.live(4 if seed < 3 else 12)
