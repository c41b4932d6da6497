"""What goes into the columnar operator, and what comes out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from tidegate.windowing.aggregates.vectorised import Int64s
from tidegate.windowing.operators.counters import Counters
from tidegate.windowing.time import Millis


@dataclass(frozen=True)
class Elements:
    """Elements of some keys, in any order.

    Args:
        keys: the key columns by name.
        timestamps: int64 epoch milliseconds.
        commits: index of each element's source commit within the epoch; int64.
        columns: the columns that the aggregates read, by name.
    """

    keys: Mapping[str, pa.Array]
    timestamps: Int64s
    commits: Int64s
    columns: Mapping[str, pa.Array]

    def __len__(self) -> int:
        return len(self.timestamps)

    def take(self, rows: Int64s) -> Elements:
        """Some of them."""
        places = pa.array(rows)
        return Elements(
            {name: column.take(places) for name, column in self.keys.items()},
            self.timestamps[rows],
            self.commits[rows],
            {name: column.take(places) for name, column in self.columns.items()},
        )


@dataclass(frozen=True)
class Outcome:
    """What an epoch made of some keys.

    Args:
        panes: a row for each pane and withdrawal: the key columns as `key_<name>`, `window_id`,
            `window_start`, `window_end`, `pane`, `timing`, `op`, `watermark`, the results as
            `value_<name>`; times are int64 epoch milliseconds.
        late: a row for each late element: its `row` among the elements, `reason`, `watermark`,
            `window_start`, `window_end`.
        state: state rows, sorted by key group.
        counters: as the row operator counts.
        next_timer: when the next event-time timer is due, None if there is none.
        rows_by_row: how many of the elements went through the row operator.
    """

    panes: pa.Table
    late: pa.Table
    state: pa.Table
    counters: Counters
    next_timer: Millis | None
    rows_by_row: int
