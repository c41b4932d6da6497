"""The events of a large shard, in pieces: so a shard of any number of events needs the memory of a few pieces.

A hot key can't be divided among shards. Where the order of the rows of a commit does not matter
(`Windows.may_split_commits`), its events pass through the operator one piece after the other, and only the state and
the results stay in memory. The pieces follow the order of the commits, because the watermark moves between commits:

    tables (commit: rows), by first commit    pieces of 3 rows
    0: 2, 1: 1 | 0: 1, 2: 1 | 2: 3            0: 3 rows, in part | 1: 1 row, 2: 4 rows

Other computations (sessions, process functions, joins, aggregates that see the order) need all events of a shard at the
same time.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition.event_columns import COMMIT
from tidegate.windowing.columnar import choose_operator
from tidegate.windowing.compute import Compute, Windows

MOST_ROWS = 4_000_000
"""Largest number of events that a shard keeps in memory if it can be fed in pieces; most shards have fewer."""
ROWS_OF_A_PIECE = 1_000_000


def taken(tables: Iterator[pa.Table], compute: Compute | None) -> tuple[Iterator[pa.Table], bool]:
    """Return the events of a shard, and True if there are so many that they should be fed in pieces.

    Without a computation, they are never fed in pieces.
    """
    first, rows = list[pa.Table](), 0
    for table in tables:
        first.append(table)
        rows += len(table)
        if rows > MOST_ROWS:
            break
    return chain(first, tables), rows > MOST_ROWS and compute is not None and may_be_cut(compute)


def may_be_cut(compute: Compute) -> bool:
    """Return True if the events of a shard may be fed in pieces."""
    return isinstance(compute, Windows) and compute.may_split_commits and choose_operator(compute).columnar


def in_pieces(
    tables: Iterator[pa.Table], commits: int, complete: bool, rows: int = ROWS_OF_A_PIECE
) -> Iterator[tuple[pa.Table, int, bool]]:
    """Yield the events in the order of their commits, in pieces of at least `rows` rows; only the last may have fewer.

    Each piece comes with the number of its last commit, and True if it completes that commit. The last piece is also
    yielded if it is empty, because it ends the epoch.

    Args:
        tables: the events, ordered by the first commit in each table.
        commits: number of commits in the epoch.
        complete: True if the last commit ends within the epoch.
        rows: number of rows of a piece.
    """
    held, size = list[pa.Table](), 0
    for table in tables:
        if not len(table):
            continue
        first = pc.min(table[COMMIT]).as_py()
        if size >= rows:
            # All events of the commits before the first one of this table have been yielded.
            whole = pa.concat_tables(held, promote_options="default")
            for limit, ended in ((first - 1, True), (first, False)):
                due = pc.less_equal(whole[COMMIT], limit)
                if (piece := whole.filter(due)).num_rows >= rows:
                    yield piece, limit, ended
                    whole = whole.filter(pc.invert(due))
            held, size = [whole], len(whole)
        held.append(table)
        size += len(table)
    if held:
        yield pa.concat_tables(held, promote_options="default"), commits - 1, complete
    else:
        yield pa.table({COMMIT: pa.array([], pa.int32())}), commits - 1, complete
