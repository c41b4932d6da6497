"""A plan whose files have to be read to be counted reads them in tasks of the engine, not in the driver."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.lake import LOCAL, Lake, at, hourly_pipeline
from tests.recovery.arrivals import copy_of, differences, rows_of
from tidegate.pipelines.engine.local import LocalEngine
from tidegate.pipelines.epoch import file_measure
from tidegate.pipelines.sources.source_table import SourceTable

pytestmark = pytest.mark.recovery


@pytest.mark.parametrize(
    "options", [{"where": "value > 1"}, {"watermark_by": "user"}, {}], ids=["where", "watermark_by", "null keys"]
)
def test_the_driver_reads_no_rows_to_plan_a_large_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    lake, pipeline = Lake(tmp_path / "lake"), hourly_pipeline(parallelism=2, **options)
    for commit in range(3):
        lake.append(*((user, at(f"1{commit}:00"), value) for value in range(4) for user in ("ann", "bob", None)))
    by_driver = copy_of(lake, tmp_path / "by_driver")
    engine = LocalEngine(cores=2, rows_in_driver=0)

    def read(*arguments: object) -> Any:
        raise AssertionError("the driver reads rows")

    try:
        with monkeypatch.context() as planted:
            planted.setattr(file_measure, "_FEW_ROWS", 0)
            planted.setattr(SourceTable, "evaluated_group", read)
            planted.setattr(SourceTable, "count_kept", _unless_it_reads(SourceTable.count_kept, read))
            lake.stream(engine, pipeline)
    finally:
        engine.close()
    by_driver.stream(LOCAL, pipeline)
    assert differences(rows_of(lake, pipeline), rows_of(by_driver, pipeline)) == {}


def _unless_it_reads(count_kept: Any, read: Any) -> Any:
    """Return `count_kept`, which reads rows only if `where` may drop some."""

    def counted(table: SourceTable, file: Any, place: Any) -> Any:
        return read() if table.columns.drops_rows else count_kept(table, file, place)

    return counted
