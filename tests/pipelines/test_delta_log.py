"""One module knows the log of a Delta table: its names, its entries, its checkpoints."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.hand_made import HandMade, column
from tidegate.pipelines.storage.delta_log import (
    LAST_CHECKPOINT,
    checkpoint_files,
    checkpoint_name,
    checkpoint_versions,
    commit_info,
    entry_name,
    entry_versions,
    files_in,
    is_entry,
)
from tidegate.pipelines.storage.warehouse import Warehouse

ROOT = Path(__file__).parents[2]


def test_no_other_module_names_a_file_of_a_log() -> None:
    others = [
        str(file.relative_to(ROOT))
        for package in ("pipelines", "expectations", "windowing", "dags")
        for file in sorted((ROOT / package).rglob("*.py"))
        if "_delta_log" in (text := file.read_text()) or ":020d" in text
    ]
    assert others == ["pipelines/storage/delta_log.py"]


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


def _in_one_file(log: Path, rows: pa.Table, name: str) -> None:
    pq.write_table(rows, log / f"{name}.parquet")


def _in_parts(log: Path, rows: pa.Table, name: str) -> None:
    for number in (1, 2):
        part = rows.slice(0, 3) if number == 1 else rows.slice(3)
        pq.write_table(part, log / f"{name}.{number:010d}.{2:010d}.parquet")


def _with_an_id(log: Path, rows: pa.Table, name: str) -> None:
    pq.write_table(rows, log / f"{name}.{uuid.uuid4()}.parquet")


def _with_a_sidecar(log: Path, rows: pa.Table, name: str) -> None:
    (log / "_sidecars").mkdir()
    pq.write_table(rows, log / "_sidecars" / "adds.parquet")
    lines = [{"checkpointMetadata": {"version": 3}}, {"sidecar": {"path": "adds.parquet", "sizeInBytes": 1}}]
    (log / f"{name}.{uuid.uuid4()}.json").write_text("\n".join(map(json.dumps, lines)))


@pytest.mark.parametrize("write", [_in_one_file, _in_parts, _with_an_id, _with_a_sidecar])
def test_add_actions_are_read_from_checkpoints_of_every_form(tmp_path: Path, write: Callable[..., None]) -> None:
    table = HandMade(tmp_path / "events", [column("value", "long"), column("part", "string")], ["part"])
    rows = pa.table({"value": [1]})
    for text in ("a", "b", None):
        table.commit(table.file(rows, {"part": text}, f"{text}.parquet"))
    folder = tmp_path / "events" / "_delta_log"
    DeltaTable(str(tmp_path / "events")).create_checkpoint()
    checkpoint = folder / "00000000000000000003.checkpoint.parquet"
    actions = pq.read_table(checkpoint)
    checkpoint.unlink()
    write(folder, actions, "00000000000000000003.checkpoint")
    for version in range(4):
        (folder / f"{version:020d}.json").unlink()
    table.commit(table.file(rows, {"part": "c"}, "c.parquet"))
    names = [file.name for file in folder.iterdir()]
    log = Warehouse(str(tmp_path)).log(str(tmp_path / "events"))
    adds = log.added(4, names, ("partitionValues", "deletionVector"))
    assert {path: add["partitionValues"] for path, add in adds.items()} == {
        f"{text}.parquet": {"part": text} for text in ("a", "b", None, "c")
    }


def test_a_checkpoint_that_lacks_a_part_counts_for_nothing(tmp_path: Path) -> None:
    part = "00000000000000000003.checkpoint.0000000001.0000000002.parquet"
    whole = "00000000000000000003.checkpoint.0000000002.0000000002.parquet"
    assert checkpoint_files([part], 3) == []
    assert checkpoint_files([whole, part], 3) == [part, whole]
    assert checkpoint_files([whole, part], 4) == []
