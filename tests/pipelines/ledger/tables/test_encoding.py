"""Parquet dictionaries of our files: for columns whose values repeat."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate.pipelines.ledger.tables.files import write_file
from tidegate.pipelines.storage.warehouse import Warehouse

LARGE = 200_000


@pytest.mark.parametrize(("rows", "dictionaries"), [(LARGE, {"key"}), (1_000, {"key", "window_start", "total"})])
def test_a_large_file_has_no_dictionary_of_values_that_hardly_repeat(
    tmp_path: Path, rows: int, dictionaries: set[str]
) -> None:
    numbers = np.arange(rows)
    table = pa.table(
        {
            "key": pa.array(numbers // 10).cast(pa.string()),
            "window_id": numbers,
            "window_start": pa.array(numbers * 1_000).cast(pa.timestamp("us", "UTC")),
            "total": numbers / 2,
        }
    )
    file = write_file(Warehouse(str(tmp_path)), str(tmp_path / "results"), "results-000001", table)
    assert file is not None
    columns = pq.read_metadata(tmp_path / "results" / file.path).row_group(0)
    described = [columns.column(number) for number in range(columns.num_columns)]
    assert {column.path_in_schema for column in described if column.has_dictionary_page} == dictionaries
    assert pq.read_table(tmp_path / "results" / file.path).equals(table)
