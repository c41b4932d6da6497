"""A job for an environment with pyclink: Nexmark's queries as streaming SQL over JSON lines.

    python clink_job.py FOLDER QUERY ...

FOLDER has a file of JSON lines for each table, in order of time. For each query the job writes the final content of its
changelog into files FOLDER/QUERY.N of JSON lines. Then it prints as JSON the seconds of a run into a sink that discards
all rows, and of a scan of its table. It imports nothing of ours.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from time import perf_counter

import pyclink

TASKS = 1
_BID = "auction BIGINT, bidder BIGINT, price BIGINT, channel VARCHAR, ms BIGINT"
_HOP = "HOP(ms, 10000, 2000)"
_COUNTS = f"(SELECT auction, window_start AS start, COUNT(*) AS bids FROM bid GROUP BY auction, {_HOP}) AS counts"
_BOUNDS = "window_start, window_end"
_TENS = "(SELECT ms - ms % 10000 AS start, auction, bidder, price, ms FROM bid) AS tens"


def _first(columns: str, rows: str, function: str, partition: str, order: str, most: int = 1) -> str:
    """Return the SQL of the first rows of each partition."""
    place = f"{function}() OVER (PARTITION BY {partition} ORDER BY {order}) AS place"
    return f"SELECT {columns} FROM (SELECT *, {place} FROM {rows}) AS placed WHERE place <= {most}"


QUERIES = {
    "q5": (
        "start BIGINT, auction BIGINT, bids BIGINT",
        _first("start, auction, bids", _COUNTS, "RANK", "start", "bids DESC"),
    ),
    "q7": (
        "start BIGINT, auction BIGINT, bidder BIGINT, price BIGINT, ms BIGINT",
        _first("start, auction, bidder, price, ms", _TENS, "RANK", "start", "price DESC"),
    ),
    "q11": (
        "bidder BIGINT, start BIGINT, stop BIGINT, bids BIGINT",
        f"SELECT bidder, {_BOUNDS}, COUNT(*) FROM bid GROUP BY bidder, SESSION(ms, 10000)",
    ),
    "q18": (
        "bidder BIGINT, auction BIGINT, ms BIGINT, price BIGINT, channel VARCHAR",
        _first(
            "bidder, auction, ms, price, channel",
            "bid",
            "ROW_NUMBER",
            "bidder, auction",
            "ms DESC, price, channel",
        ),
    ),
    "q19": (
        "auction BIGINT, price BIGINT, ms BIGINT, bidder BIGINT, channel VARCHAR",
        _first(
            "auction, price, ms, bidder, channel",
            "bid",
            "ROW_NUMBER",
            "auction",
            "price DESC, ms, bidder, channel",
            10,
        ),
    ),
    "hop": (
        "auction BIGINT, start BIGINT, bids BIGINT, total BIGINT",
        f"SELECT auction, window_start, COUNT(*), SUM(price) FROM bid GROUP BY auction, {_HOP}",
    ),
    "cumulate": (
        "auction BIGINT, start BIGINT, stop BIGINT, bids BIGINT, highest BIGINT",
        f"SELECT auction, {_BOUNDS}, COUNT(*), MAX(price) FROM bid GROUP BY auction, CUMULATE(ms, 10000, 60000)",
    ),
}


def seconds(folder: Path, columns: str, query: str, sink: str) -> float:
    """Run a query to its end, and return its seconds, without the start of the engine."""
    with pyclink.Engine(parallelism=TASKS) as engine:
        began = perf_counter()
        engine.execute(
            f"CREATE TABLE bid ({_BID}) WITH (connector='file', format='json', path='{folder / 'bid.json'}', "
            "event_time_column='ms', watermark_lag_ms='4000');"
            f"CREATE TABLE result ({columns}) WITH ({sink});"
            f"INSERT INTO result {query}"
        )
        engine.await_all()
        return perf_counter() - began


def main(folder: str, *queries: str) -> None:
    """Write the content of each query, then print its seconds and those of its scan."""
    place, nothing = Path(folder), "connector='blackhole', format='json'"
    for name in queries:
        columns, query = QUERIES[name]
        seconds(place, columns, query, f"connector='changelog', format='json', path='{place / name}'")
        taken = seconds(place, columns, query, nothing)
        scan = seconds(place, _BID, "SELECT * FROM bid", nothing)
        print(json.dumps({"job": name, "seconds": taken, "scan": scan}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
