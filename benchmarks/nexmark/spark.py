"""Spark's side: structured streaming over the same tables into a Delta table, for the queries that it can express."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import DeltaTable

from benchmarks.nexmark.peers import Missing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CANT = {
    "q5": "a second aggregation over the windows of the first needs a second query over its table",
    "q7": "it has no top-N of a window in a stream",
    "q8": "its semi join of streams keeps rows by a range of times, and not by window",
    "q12": "its processing time is the clock of the query, so each run has another answer",
    "q18": "it has no last row of a key in a stream",
    "q19": "it has no top-N of a key in a stream",
    "cumulate": "it has no cumulative windows",
}


def answer_of_spark(spark: SparkSession, lake: Path, query: str) -> tuple[pa.Table, float]:
    """Return the answer of a query, and the seconds of the stream over all commits.

    Raises:
        Missing: structured streaming has no such query.
    """
    if query in _CANT:
        raise Missing(_CANT[query])
    # The session of the benchmarks has no batch without data. The rows of the last windows need one.
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", True)
    bids = spark.readStream.format("delta").option("maxFilesPerTrigger", "1").load(str(lake / "bid"))
    with tempfile.TemporaryDirectory(dir=lake) as folder:
        rows = _QUERIES[query](bids.withWatermark("at", "4 seconds"))
        began = perf_counter()
        (
            rows.writeStream.format("delta")
            .option("checkpointLocation", f"{folder}/checkpoint")
            .trigger(availableNow=True)
            .start(f"{folder}/results")
            .awaitTermination()
        )
        seconds = perf_counter() - began
        return DeltaTable(f"{folder}/results").to_pyarrow_table(), seconds


def _hop(bids: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    hops = bids.groupBy("auction", f.window("at", "10 seconds", "2 seconds").alias("hop"))
    rows = hops.agg(f.count("*").alias("bids"), f.sum("price").alias("total"))
    return rows.select("auction", f.unix_millis("hop.start").alias("start"), "bids", "total")


def _sessions(bids: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f

    sessions = bids.groupBy("bidder", f.session_window("at", "10 seconds").alias("session"))
    start, stop = (f.unix_millis(f"session.{bound}") for bound in ("start", "end"))
    return sessions.agg(f.count("*").alias("bids")).select("bidder", start.alias("start"), stop.alias("stop"), "bids")


_QUERIES: dict[str, Callable[[DataFrame], DataFrame]] = {"hop": _hop, "q11": _sessions}
