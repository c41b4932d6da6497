"""A job for Flink's own Python: Nexmark's queries as streaming SQL over CSV files.

    python nexmark.py FOLDER QUERY ...

FOLDER has a folder of CSV files for each table, in order of time. For each query the job writes the changelog of its
result into files in FOLDER/QUERY, as Debezium's JSON lines. Then it prints as JSON the net seconds of a run into a sink
that discards all rows, and of a scan of its tables. It imports nothing of ours.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyflink.table import EnvironmentSettings, TableEnvironment

TASKS = 2
_TABLES = {
    "person": "id BIGINT, name STRING",
    "auction": "id BIGINT, seller BIGINT, category BIGINT",
    "bid": "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING",
}
_HOP = "TABLE(HOP(TABLE bid, DESCRIPTOR(moment), INTERVAL '2' SECOND, INTERVAL '10' SECOND))"
_COUNTS = (
    f"SELECT auction, window_start, window_end, COUNT(*) AS bids FROM {_HOP} GROUP BY auction, window_start, window_end"
)


def _tumble(table: str) -> str:
    return f"TABLE(TUMBLE(TABLE {table}, DESCRIPTOR(moment), INTERVAL '10' SECOND))"


def _millis(bound: str) -> str:
    """Return the SQL of a bound of windows, which lie on whole seconds, as epoch milliseconds."""
    return (
        f"TIMESTAMPDIFF(SECOND, TIMESTAMP '1970-01-01 00:00:00', CAST({bound} AS TIMESTAMP(3))) * CAST(1000 AS BIGINT)"
    )


def _ranked(columns: str, partition: str, order: str, most: int) -> str:
    number = f"ROW_NUMBER() OVER (PARTITION BY {partition} ORDER BY {order}) AS place"
    return f"SELECT {columns} FROM (SELECT *, {number} FROM bid) WHERE place <= {most}"


_SAME = "A.window_start = M.window_start AND A.window_end = M.window_end"
QUERIES = {
    "q5": f"SELECT {_millis('A.window_start')}, A.auction, A.bids FROM ({_COUNTS}) A JOIN "
    "(SELECT MAX(bids) AS most, window_start, window_end FROM "
    f"({_COUNTS}) GROUP BY window_start, window_end) M ON {_SAME} AND A.bids = M.most",
    "q7": f"SELECT {_millis('A.window_start')}, A.auction, A.bidder, A.price, A.ts FROM "
    f"(SELECT * FROM {_tumble('bid')}) A JOIN (SELECT MAX(price) AS most, window_start, window_end "
    f"FROM {_tumble('bid')} GROUP BY window_start, window_end) M ON {_SAME} AND A.price = M.most",
    "q8": f"SELECT A.id, A.name, {_millis('A.window_start')} FROM (SELECT * FROM {_tumble('person')}) A WHERE A.id IN "
    f"(SELECT M.seller FROM (SELECT * FROM {_tumble('auction')}) M WHERE {_SAME})",
    "q11": "SELECT bidder, MIN(ts), MAX(ts) + 10000, COUNT(*) FROM TABLE(SESSION(TABLE bid PARTITION BY bidder, "
    "DESCRIPTOR(moment), INTERVAL '10' SECOND)) GROUP BY bidder, window_start, window_end",
    "q18": _ranked("bidder, auction, ts, price, channel", "bidder, auction", "ts DESC, price, channel", 1),
    "q19": _ranked("auction, price, ts, bidder, channel", "auction", "price DESC, ts, bidder, channel", 10),
    "hop": f"SELECT auction, {_millis('window_start')}, COUNT(*), SUM(price) FROM {_HOP} "
    "GROUP BY auction, window_start, window_end",
    "cumulate": f"SELECT auction, {_millis('window_start')}, {_millis('window_end')}, COUNT(*), MAX(price) FROM "
    "TABLE(CUMULATE(TABLE bid, DESCRIPTOR(moment), INTERVAL '10' SECOND, INTERVAL '60' SECOND)) "
    "GROUP BY auction, window_start, window_end",
}
_SINKS = {
    "q5": "a BIGINT, b BIGINT, c BIGINT",
    "q7": "a BIGINT, b BIGINT, c BIGINT, d BIGINT, e BIGINT",
    "q8": "a BIGINT, b STRING, c BIGINT",
    "q11": "a BIGINT, b BIGINT, c BIGINT, d BIGINT",
    "q18": "a BIGINT, b BIGINT, c BIGINT, d BIGINT, e STRING",
    "q19": "a BIGINT, b BIGINT, c BIGINT, d BIGINT, e STRING",
    "hop": "a BIGINT, b BIGINT, c BIGINT, d BIGINT",
    "cumulate": "a BIGINT, b BIGINT, c BIGINT, d BIGINT, e BIGINT",
}
_READ = {query: ("person", "auction") if query == "q8" else ("bid",) for query in QUERIES}


def environment(folder: Path) -> TableEnvironment:
    """Return the source tables, with a watermark four seconds behind, and two sinks for each query: files and none."""
    tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
    tables.get_config().set("parallelism.default", str(TASKS))
    tables.get_config().set("table.local-time-zone", "UTC")
    for name, columns in _TABLES.items():
        tables.execute_sql(
            f"CREATE TABLE {name} ({columns}, ts BIGINT, moment AS TO_TIMESTAMP_LTZ(ts, 3), "
            "WATERMARK FOR moment AS moment - INTERVAL '4' SECOND) "
            f"WITH ('connector' = 'filesystem', 'path' = '{folder / name}', 'format' = 'csv')"
        )
        tables.execute_sql(f"CREATE TABLE {name}_scan ({columns}, ts BIGINT) WITH ('connector' = 'blackhole')")
    for query, columns in _SINKS.items():
        tables.execute_sql(f"CREATE TABLE {query}_sink ({columns}) WITH ('connector' = 'blackhole')")
        tables.execute_sql(
            f"CREATE TABLE {query}_changes ({columns}) WITH "
            f"('connector' = 'filesystem', 'path' = '{folder / query}', 'format' = 'debezium-json')"
        )
    return tables


def net_seconds(tables: TableEnvironment, statement: str) -> float:
    """Run a job to its end, and return its net seconds, without the start of the cluster."""
    client = tables.execute_sql(statement).get_job_client()
    return float(client.get_job_execution_result().result().get_net_runtime()) / 1000


def main(folder: str, *queries: str) -> None:
    """Write the content of each query, then print its seconds and those of its scan."""
    place = Path(folder)
    tables = environment(place)
    for query in queries:
        net_seconds(tables, f"INSERT INTO {query}_changes {QUERIES[query]}")
        seconds = net_seconds(tables, f"INSERT INTO {query}_sink {QUERIES[query]}")
        scan = sum(
            net_seconds(tables, f"INSERT INTO {name}_scan SELECT {_names(name)} FROM {name}") for name in _READ[query]
        )
        print(json.dumps({"job": query, "seconds": seconds, "scan": scan}), flush=True)


def _names(table: str) -> str:
    return ", ".join([column.split()[0] for column in _TABLES[table].split(", ")] + ["ts"])


if __name__ == "__main__":
    main(*sys.argv[1:])
