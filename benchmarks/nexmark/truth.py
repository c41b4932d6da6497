"""The answers: each query over all events as a batch, in DuckDB. Times are int64 epoch milliseconds.

`bid`, `auction` and `person` have the columns of the tables, and `ms`, their time. Where the suite's query leaves open
which of equal rows comes first, an order is fixed here, and every side has it.
"""

from __future__ import annotations

import duckdb
import pyarrow as pa

COMMIT_SECONDS = 3
"""Seconds from one commit of the sources to the next, by their log: the processing time of query 12."""

_HOPS = "(SELECT *, unnest(range(ms - ms % 2000 - 8000, ms - ms % 2000 + 1, 2000)) AS start FROM bid)"
_COUNTS = f"(SELECT auction, start, count(*) AS bids FROM {_HOPS} GROUP BY ALL)"
_STEPS = (
    "(SELECT *, ms - ms % 60000 AS start, unnest(range(ms - ms % 10000 + 10000, ms - ms % 60000 + 60001, 10000)) "
    "AS stop FROM bid)"
)

QUERIES: dict[str, str] = {
    # The auctions with the most bids of the last 10 seconds, every 2 seconds.
    "q5": f"SELECT start, auction, bids FROM {_COUNTS} QUALIFY bids = max(bids) OVER (PARTITION BY start)",
    # The highest bids of each 10 seconds.
    "q7": "SELECT ms - ms % 10000 AS start, auction, bidder, price, ms FROM bid "
    "QUALIFY price = max(price) OVER (PARTITION BY ms - ms % 10000)",
    # The persons who opened an auction in the 10 seconds in which they came.
    "q8": "SELECT id, name, ms - ms % 10000 AS start FROM person SEMI JOIN "
    "(SELECT seller, ms - ms % 10000 AS opened FROM auction) AS a ON id = seller AND ms - ms % 10000 = opened",
    # The number of bids in each session of a bidder, with a gap of 10 seconds.
    "q11": "SELECT bidder, min(ms) AS start, max(ms) + 10000 AS stop, count(*) AS bids FROM ("
    "SELECT *, sum(new) OVER (PARTITION BY bidder ORDER BY ms ROWS UNBOUNDED PRECEDING) AS session FROM ("
    "SELECT *, CAST(coalesce(ms - lag(ms) OVER (PARTITION BY bidder ORDER BY ms) > 10000, true) AS INT) AS new "
    "FROM bid)) GROUP BY bidder, session",
    # The number of bids of each bidder in 10 seconds of processing time, which is the time of the source's commit.
    "q12": "SELECT bidder, done - done % 10000 AS start, count(*) AS bids FROM ("
    f"SELECT *, base + commit * {COMMIT_SECONDS * 1000} AS done FROM bid) GROUP BY ALL",
    # The last bid of each bidder on each auction.
    "q18": "SELECT bidder, auction, ms, price, channel FROM bid QUALIFY row_number() OVER ("
    "PARTITION BY bidder, auction ORDER BY ms DESC, price, channel) = 1",
    # The ten highest bids on each auction.
    "q19": "SELECT auction, price, ms, bidder, channel FROM bid QUALIFY row_number() OVER ("
    "PARTITION BY auction ORDER BY price DESC, ms, bidder, channel) <= 10",
    # The bids on each auction in 10 seconds, every 2 seconds.
    "hop": f"SELECT auction, start, count(*) AS bids, sum(price)::BIGINT AS total FROM {_HOPS} GROUP BY ALL",
    # The bids on each auction in a minute so far, every 10 seconds.
    "cumulate": f"SELECT auction, start, stop, count(*) AS bids, max(price) AS highest FROM {_STEPS} GROUP BY ALL",
}


class Truth:
    """A database with all events, which answers the queries and compares other answers with them.

    Args:
        tables: rows of each table.
        base: time of the first commit, int64 epoch milliseconds.
    """

    def __init__(self, tables: dict[str, pa.Table], base: int) -> None:
        self._database = duckdb.connect()
        self._database.execute("SET timezone = 'UTC'; SET threads = 2; SET enable_progress_bar = false")
        for name, rows in tables.items():
            self._database.register("given", rows)
            more = f", {base}::BIGINT AS base" if name == "bid" else ""
            self._database.execute(f'CREATE TABLE {name} AS SELECT *, epoch_ms("at") AS ms{more} FROM given')
            self._database.unregister("given")

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def answer(self, query: str) -> pa.Table:
        """Return the answer of a query."""
        return self._database.sql(QUERIES[query]).to_arrow_table()

    def difference(self, expected: pa.Table, came: pa.Table) -> str:
        """Describe the first difference of two answers, as multisets of rows; empty if they are equal."""
        self._database.register("expected", expected)
        self._database.register("came", came.select(expected.column_names))
        for one, other, words in (("expected", "came", "lacks"), ("came", "expected", "has in excess")):
            rows = self._database.sql(f"SELECT * FROM {one} EXCEPT ALL SELECT * FROM {other}").to_arrow_table()
            if len(rows):
                return f"{words} {len(rows):,} of {len(expected):,} rows, such as {rows.slice(0, 1).to_pylist()[0]}"
        return ""
