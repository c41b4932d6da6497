"""A job for an environment with Pathway: Nexmark's queries over JSON lines.

    python pathway_job.py FOLDER QUERY ...

FOLDER has bid.json, auction.json and person.json, in order of time; all is read before the first answer. For each query
the job writes the changes of its answer as JSON lines into FOLDER/QUERY. Then it prints as JSON the seconds of a run
into a sink that discards all rows, and of a scan of its tables. It imports nothing of ours.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

os.environ.setdefault("PATHWAY_THREADS", "2")

import pathway as pw
from pathway.internals.parse_graph import G

_TEN = 10_000


class Bid(pw.Schema):
    """A bid; `ms` is its time, epoch milliseconds."""

    auction: int
    bidder: int
    price: int
    channel: str
    ms: int


class Auction(pw.Schema):
    """A new auction."""

    seller: int
    ms: int


class Person(pw.Schema):
    """A new person."""

    person: int
    name: str
    ms: int


_SCHEMAS = {"bid": Bid, "auction": Auction, "person": Person}
Read = Callable[[str], pw.Table]


def _hops(bid: pw.Table) -> pw.Table:
    windows = bid.windowby(
        pw.this.ms, window=pw.temporal.sliding(hop=2_000, duration=_TEN, origin=0), instance=pw.this.auction
    )
    return windows.reduce(
        auction=pw.this._pw_instance,
        start=pw.this._pw_window_start,
        bids=pw.reducers.count(),
        total=pw.reducers.sum(pw.this.price),
    )


def hop(read: Read) -> pw.Table:
    """Return the bids on each auction in 10 seconds, every 2 seconds."""
    return _hops(read("bid"))


def q5(read: Read) -> pw.Table:
    """Return the auctions with the most bids of the last 10 seconds, every 2 seconds."""
    counts = _hops(read("bid"))
    most = counts.groupby(pw.this.start).reduce(pw.this.start, bids=pw.reducers.max(pw.this.bids))
    return counts.join(most, pw.left.start == pw.right.start, pw.left.bids == pw.right.bids).select(
        pw.left.start, pw.left.auction, pw.left.bids
    )


def q7(read: Read) -> pw.Table:
    """Return the highest bids of each 10 seconds."""
    bid = read("bid").with_columns(start=pw.this.ms // _TEN * _TEN)
    most = bid.groupby(pw.this.start).reduce(pw.this.start, price=pw.reducers.max(pw.this.price))
    return bid.join(most, pw.left.start == pw.right.start, pw.left.price == pw.right.price).select(
        pw.left.start, pw.left.auction, pw.left.bidder, pw.left.price, pw.left.ms
    )


def q8(read: Read) -> pw.Table:
    """Return the persons who opened an auction in the 10 seconds in which they came."""
    person = read("person").with_columns(start=pw.this.ms // _TEN * _TEN)
    opened = read("auction").with_columns(start=pw.this.ms // _TEN * _TEN)
    sellers = opened.groupby(pw.this.seller, pw.this.start).reduce(pw.this.seller, pw.this.start)
    return person.join(sellers, pw.left.person == pw.right.seller, pw.left.start == pw.right.start).select(
        pw.left.person, pw.left.name, pw.left.start
    )


def q11(read: Read) -> pw.Table:
    """Return the bids in each session of a bidder."""
    session = pw.temporal.session(predicate=lambda one, other: other - one <= _TEN)
    return (
        read("bid")
        .windowby(pw.this.ms, window=session, instance=pw.this.bidder)
        .reduce(
            bidder=pw.this._pw_instance,
            start=pw.this._pw_window_start,
            stop=pw.this._pw_window_end + _TEN,
            bids=pw.reducers.count(),
        )
    )


QUERIES = {"q5": q5, "q7": q7, "q8": q8, "q11": q11, "hop": hop}
_TABLES = {"q8": ("person", "auction")}


def seconds(folder: Path, build: Callable[[Read], list[pw.Table]], file: Path | None) -> float:
    """Run a graph to its end, and return its seconds; its rows go to a file, or nowhere."""
    G.clear()
    for table in build(
        lambda name: pw.io.jsonlines.read(folder / f"{name}.json", schema=_SCHEMAS[name], mode="static")
    ):
        if file is None:
            pw.io.null.write(table)
        else:
            pw.io.jsonlines.write(table, file)
    began = perf_counter()
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)
    return perf_counter() - began


def main(folder: str, *queries: str) -> None:
    """Write the changes of each answer, then print the seconds of its query and of a scan."""
    place = Path(folder)
    for name in queries:
        query = QUERIES[name]
        seconds(place, lambda read, query=query: [query(read)], place / name)
        taken = seconds(place, lambda read, query=query: [query(read)], None)
        scan = seconds(place, lambda read, name=name: [read(each) for each in _TABLES.get(name, ("bid",))], None)
        print(json.dumps({"job": name, "seconds": taken, "scan": scan}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
