"""The order of results in a file: a large epoch of a stream writes them by their windows' starts."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from tidegate.pipelines.definition import results


def panes(count: int) -> pa.Table:
    """Panes of a few keys, all windows of a key together."""
    numbers = np.arange(count)
    starts = pa.array(numbers % 1000 * 60_000_000, pa.timestamp("us", tz="UTC"))
    return pa.table({"user": numbers // 1000, "window_start": starts, "pane": np.zeros(count, np.int32)})


def test_many_panes_come_by_their_starts_and_those_of_a_start_in_their_order() -> None:
    ordered = results.by_window(rows := panes(250_000))
    starts = np.asarray(ordered["window_start"].cast(pa.int64()))
    assert (np.diff(starts) >= 0).all()
    assert (np.diff(np.asarray(ordered["user"])[starts == 0]) > 0).all()
    columns = [(name, "ascending") for name in ("user", "window_start")]
    assert ordered.sort_by(columns) == rows.sort_by(columns)


@pytest.mark.parametrize("rows", [panes(5_000), panes(250_000).drop_columns(["pane"])], ids=["few", "no panes"])
def test_few_rows_and_rows_that_are_no_panes_stay_as_they_are(rows: pa.Table) -> None:
    assert results.by_window(rows) is rows
