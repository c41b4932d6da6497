"""One module knows the log of a Delta table: its names, its entries, its checkpoints."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tidegate.pipelines.delta_log import (
    LAST_CHECKPOINT,
    checkpoint_name,
    checkpoint_versions,
    commit_info,
    entry_name,
    entry_versions,
    files_in,
    is_entry,
)
from tidegate.pipelines.storage import Warehouse

ROOT = Path(__file__).parents[2]


def test_no_other_module_names_a_file_of_a_log() -> None:
    others = [
        str(file.relative_to(ROOT))
        for package in ("pipelines", "expectations", "windowing", "dags")
        for file in sorted((ROOT / package).rglob("*.py"))
        if "_delta_log" in (text := file.read_text()) or ":020d" in text
    ]
    assert others == ["pipelines/delta_log.py"]


def test_names_tell_their_version_and_kind() -> None:
    parts = f"{7:020d}.checkpoint.0000000001.0000000002.parquet"
    second_form = f"{8:020d}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json"
    names = [entry_name(2), entry_name(10), checkpoint_name(2), parts, second_form, LAST_CHECKPOINT, "damaged.json"]
    assert entry_versions(names) == [2, 10]
    assert checkpoint_versions(names) == [2, 7, 8]
    assert [name for name in names if is_entry(name)] == names[:2]


def test_entries_and_checkpoints_are_read_as_delta_wrote_them(tmp_path: Path) -> None:
    path = str(tmp_path / "events of today")
    for number in range(2):
        write_deltalake(path, pa.table({"n": [number]}), mode="append")
    write_deltalake(path, pa.table({"n": [5]}), mode="overwrite")
    table = DeltaTable(path)
    table.create_checkpoint()
    log = Warehouse(str(tmp_path)).log(path)
    actions = log.actions(2)
    assert commit_info(actions)["operation"] == "WRITE"
    assert {*files_in(actions, "add")} == {file["path"] for file in pa.table(table.get_add_actions()).to_pylist()}
    assert len(files_in(actions, "remove")) == 2
    added = log.checkpoint(2, ["add"])["add"].to_pylist()
    assert [row["path"] for row in added if row is not None and row["path"]] == [*files_in(actions, "add")]
    assert log.info(3) is None
    assert log.info(2) is not None
    with pytest.raises(FileNotFoundError):
        log.actions(3)
    (Path(path) / "_delta_log" / entry_name(2)).write_text('{"commitInfo": {')
    with pytest.raises(ValueError, match="Expecting"):
        log.actions(2)
