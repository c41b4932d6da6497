"""A job for Flink's own Python: SQL windows over CSV files in streaming mode, into a sink that discards all rows.

    python sql_windows.py FOLDER ROUNDS [--count]

FOLDER has a file for each of two tasks, in order of arrival, with key, time in epoch milliseconds and value. The job
prints the net seconds of each query as JSON, and with `--count` the totals of the windows. It imports nothing of ours.
"""

from __future__ import annotations

import json
import sys

from pyflink.table import EnvironmentSettings, TableEnvironment

TASKS = 2
_WINDOWS = {
    "session": "SESSION(TABLE events PARTITION BY key, DESCRIPTOR(moment), INTERVAL '10' MINUTES)",
    "tumbling": "TUMBLE(TABLE events, DESCRIPTOR(moment), INTERVAL '10' MINUTES)",
}


def environment(folder: str) -> TableEnvironment:
    """Return the tables: the events with a watermark a minute behind, and sinks that discard all rows."""
    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    tables.get_config().set("parallelism.default", str(TASKS))
    tables.get_config().set("table.local-time-zone", "UTC")
    tables.execute_sql(
        "CREATE TABLE events (key STRING, ts BIGINT, `value` BIGINT, moment AS TO_TIMESTAMP_LTZ(ts, 3), "
        "WATERMARK FOR moment AS moment - INTERVAL '1' MINUTE) "
        f"WITH ('connector' = 'filesystem', 'path' = '{folder}', 'format' = 'csv')"
    )
    tables.execute_sql(
        "CREATE TABLE scanned (key STRING, moment TIMESTAMP_LTZ(3), `value` BIGINT) WITH ('connector' = 'blackhole')"
    )
    tables.execute_sql(
        "CREATE TABLE results (key STRING, window_start TIMESTAMP_LTZ(3), window_end TIMESTAMP_LTZ(3), "
        "events BIGINT, total BIGINT) WITH ('connector' = 'blackhole')"
    )
    return tables


def windows(kind: str) -> str:
    """Return the query for the count and the sum of each key and window."""
    columns = "key, window_start, window_end"
    aggregates = "COUNT(*) AS events, SUM(`value`) AS total"
    return f"SELECT {columns}, {aggregates} FROM TABLE({_WINDOWS[kind]}) GROUP BY {columns}"


def net_seconds(tables: TableEnvironment, statement: str) -> float:
    """Run a job to its end, and return its net seconds, without the start of the cluster."""
    client = tables.execute_sql(statement).get_job_client()
    return float(client.get_job_execution_result().result().get_net_runtime()) / 1000


def main(folder: str, rounds: str, *count: str) -> None:
    """Print seconds of the scan and of each kind of windows, after a round of warm-up."""
    tables = environment(folder)
    jobs = {"scan": "INSERT INTO scanned SELECT key, moment, `value` FROM events"}
    jobs |= {kind: f"INSERT INTO results {windows(kind)}" for kind in _WINDOWS}
    for turn in range(int(rounds) + 1):
        for job, statement in jobs.items():
            seconds = net_seconds(tables, statement)
            if turn:
                print(json.dumps({"job": job, "seconds": seconds}), flush=True)
    for kind in _WINDOWS if count else ():
        whole = tables.execute_sql(f"SELECT COUNT(*), SUM(events), SUM(total) FROM ({windows(kind)})")
        with whole.collect() as changes:
            *_, last = changes
        print(json.dumps({"job": kind, "windows": last[0], "events": last[1], "total": last[2]}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
