from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, TableFeatures, write_deltalake

from tests.lake import at
from tests.pipelines.by_hand import ByHand
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.snapshots.savepoint import create_savepoint
from tidegate.pipelines.ledger.tables.pipeline_tables import ALL
from tidegate.pipelines.ledger.tables.table_log import TableLog
from tidegate.pipelines.storage.warehouse import Warehouse


def test_a_first_epoch_makes_every_table_under_the_pipelines_folder(by_hand: ByHand) -> None:
    assert not by_hand.tables.exist
    by_hand.epoch(("ann", at("10:00"), 1), watermark=at("10:00"))
    assert by_hand.tables.exist
    folder = by_hand.folder / "warehouse" / by_hand.pipeline.name
    assert {path.name for path in folder.iterdir()} == set(ALL)


@pytest.mark.parametrize("table", ALL)
def test_our_tables_keep_their_log_and_need_no_special_reader(by_hand: ByHand, table: str) -> None:
    by_hand.epoch(("ann", at("10:00"), 1), watermark=at("10:00"))
    handle = by_hand.tables.open(table)
    assert handle.protocol().min_reader_version == 1
    assert handle.metadata().configuration["delta.enableExpiredLogCleanup"] == "false"
    assert handle.metadata().name == f"{by_hand.pipeline.name}.{table}"


def test_every_column_of_ours_says_what_it_means(by_hand: ByHand) -> None:
    by_hand.epoch(("ann", at("10:00"), 1), watermark=at("10:00"))
    for table in ("results", "late", "rejects", "epochs"):
        described = {f.name for f in by_hand.tables.open(table).schema().fields if f.metadata.get("comment")}
        assert {"timeline", "epoch", "stale"} <= described


def switch_on(path: str, name: str, value: str) -> None:
    """Commit the property as another engine would, because deltalake refuses to set some of them."""
    log = Path(path) / "_delta_log"
    metadata = next(
        json.loads(line)["metaData"]
        for line in (log / f"{0:020d}.json").read_text().splitlines()
        if "metaData" in json.loads(line)
    )
    metadata["configuration"][name] = value
    (log / f"{DeltaTable(path).version() + 1:020d}.json").write_text(json.dumps({"metaData": metadata}))


@pytest.mark.first(5)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("delta.columnMapping.mode", "name"),
        ("delta.enableDeletionVectors", "true"),
        ("delta.enableRowTracking", "true"),
        ("delta.enableChangeDataFeed", "true"),
        ("delta.appendOnly", "true"),
    ],
)
@pytest.mark.parametrize("table", ["state", "results"])
def test_a_property_under_which_our_commits_would_be_wrong_is_refused(
    by_hand: ByHand, table: str, name: str, value: str
) -> None:
    by_hand.epoch(("ann", at("10:00"), 1), watermark=at("10:00"))
    switch_on(by_hand.tables.path(table), name, value)
    with pytest.raises(Refused, match=rf"{by_hand.tables.path(table)} has .*{name}={value}.*restart=True"):
        by_hand.tables.open(table)


@pytest.mark.parametrize(
    "feature", [TableFeatures.DeletionVectors, TableFeatures.ColumnMapping, TableFeatures.RowTracking]
)
def test_a_protocol_feature_that_is_not_on_the_list_is_refused(by_hand: ByHand, feature: TableFeatures) -> None:
    by_hand.epoch(("ann", at("10:00"), 1), watermark=at("10:00"))
    by_hand.tables.open("state").alter.add_feature([feature], allow_protocol_versions_increase=True)
    with pytest.raises(Refused, match="feature"):
        by_hand.epoch(("ann", at("10:10"), 1), watermark=at("10:10"))


def test_timestamps_without_zone_in_the_input_are_no_reason_to_refuse(by_hand: ByHand) -> None:
    path = by_hand.tables.path("late")
    write_deltalake(path, pa.table({"t": pa.array([0], pa.timestamp("us"))}))
    assert "timestampNtz" in (DeltaTable(path).protocol().reader_features or [])
    assert by_hand.tables.open("late").version() == 0


def test_the_application_id_is_the_pipelines_over_all_timelines(by_hand: ByHand) -> None:
    first = by_hand.epoch(("ann", at("10:00"), 1), watermark=at("10:00"))
    parent = by_hand.head()
    by_hand.epoch(("ann", at("10:10"), 1), watermark=at("10:10"))
    again = by_hand.epoch(("ann", at("10:20"), 1), watermark=at("10:00") + timedelta(minutes=30), parent=parent)
    assert (first.timeline, again.timeline, again.epoch) == (1, 2, 3)
    for table in ALL:
        assert by_hand.tables.open(table).transaction_version(by_hand.tables.application) == 3


def test_the_first_entry_of_each_table_outlives_a_power_loss(by_hand: ByHand, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, none of the later entries can be read."""
    made: list[str] = []
    real = Warehouse.make_commit_durable

    def make_commit_durable(warehouse: Warehouse, path: str, version: int) -> None:
        made.extend([path] if version == 0 else [])
        real(warehouse, path, version)

    monkeypatch.setattr(Warehouse, "make_commit_durable", make_commit_durable)
    planned = by_hand.planned([("ann", at("10:00"), 1)], at("10:00"))
    by_hand.tables.create(planned.plan.bound.table_schemas)
    assert {*map(by_hand.tables.path, ALL)} <= {*made}
    by_hand.epoch(("ann", at("10:00"), 1), watermark=at("10:00"))
    saved = create_savepoint(by_hand.tables, by_hand.head(), "kept", 1)
    assert saved.path in made


def test_a_log_is_shortened_only_once_its_checkpoint_would_outlive_a_power_loss(
    by_hand: ByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    for minute in range(3):
        by_hand.epoch(("ann", at(f"10:0{minute}"), 1), watermark=at("10:00"))
    oldest = by_hand.tables.open("epochs").version()
    did: list[str] = []
    sync, delete = Warehouse.make_durable, Warehouse.delete_file

    def make_durable(warehouse: Warehouse, path: str, names: Sequence[str] = (), folder: bool = True) -> None:
        did.extend(names)
        sync(warehouse, path, names, folder)

    def delete_file(warehouse: Warehouse, path: str, name: str) -> None:
        did.append("deleted")
        delete(warehouse, path, name)

    monkeypatch.setattr(Warehouse, "make_durable", make_durable)
    monkeypatch.setattr(Warehouse, "delete_file", delete_file)
    TableLog(by_hand.tables, "epochs").keep((), oldest)
    assert did.index(f"{oldest:020d}.checkpoint.parquet") < did.index("deleted")
    assert by_hand.tables.open("epochs").version() == oldest
