"""Datasets of commands: locations, columns, versions, and the rows that a command emitted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from openlineage.client.naming.dataset import ABFSS, GCS, HDFS, S3, WASBS, DatasetNaming, LocalFileSystem

from tests.lake import LOCAL, Clock, Lake, at, hourly_pipeline, session_pipeline
from tests.pipelines.by_hand import START_OF_DRIVER, ByHand
from tests.pipelines.project.cli.project import Project
from tidegate.pipelines.airflow.lineage import check_facets
from tidegate.pipelines.definition.config import LEASE_NOTE, WindowsTable
from tidegate.pipelines.ledger.lease import Holder, Lease
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.ledger.tables.compaction import compact
from tidegate.pipelines.ledger.tables.pipeline_tables import PUBLISHED, PipelineTables
from tidegate.pipelines.observe.lineage.datasets import (
    Written,
    datasets_of_check,
    datasets_of_driver,
    schema_facet,
    written_by_driver,
)
from tidegate.pipelines.observe.lineage.names import DatasetName, dataset_name
from tidegate.pipelines.run.stream import Stream
from tidegate.pipelines.storage.warehouse import Warehouse, active_files

Note = Callable[[], tuple[int, int | None]]


@pytest.fixture
def note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Note:
    """Return the newest command's record of when it held the lease."""
    file = tmp_path / "driven.json"
    monkeypatch.setenv(LEASE_NOTE, str(file))

    def read() -> tuple[int, int | None]:
        fields = json.loads(file.read_text())
        return fields["since"], fields["until"]

    return read


def clock_at(minutes: int) -> Callable[[], int]:
    """A clock between epochs made by hand, which begin a minute apart."""
    return lambda: START_OF_DRIVER + minutes * 60_000 - 1


def table(datasets: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in datasets["inputs"] + datasets["outputs"] if each["table"] == name)
    return found


def test_before_the_first_run_the_tables_are_told_by_the_definition(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.append(("ann", at("10:00"), 1))
    told = datasets_of_driver(lake.config, session_pipeline())
    (events,) = told["inputs"]
    assert (events["namespace"], events["name"]) == ("file", str(tmp_path / "warehouse" / "events"))
    assert events["facets"]["version"] == {"datasetVersion": "0"}
    assert [field["name"] for field in events["facets"]["schema"]["fields"]] == ["user", "at", "value"]
    assert [each["table"] for each in told["outputs"]] == ["results", "late", "rejects", "epochs"]
    assert not any("version" in each["facets"] for each in told["outputs"])
    named = {field["name"]: field for field in table(told, "results")["facets"]["schema"]["fields"]}
    assert named["window_end"] == {
        "name": "window_end",
        "type": "timestamp",
        "description": "end, exclusive; null for the global window",
    }


def test_table_windows_is_an_output_once_it_exists(tmp_path: Path, note: Note) -> None:
    lake, pipeline = Lake(tmp_path), session_pipeline()
    lake.append(("ann", at("10:00"), 1), ("bob", at("10:30"), 2), ("cem", at("15:00"), 3))
    with lake.driver(LOCAL, pipeline) as driver:
        driver.windows = WindowsTable(partition_by="day")
        Stream(driver, lambda manifest: None).run_available()
        lake.clock.now += 60_000
    told = datasets_of_driver(lake.config, pipeline, *note())
    assert [each["table"] for each in told["outputs"]] == ["results", "late", "rejects", "epochs", "windows"]
    windows = table(told, "windows")
    assert windows["outputFacets"]["outputStatistics"]["rowCount"] == 2
    origins = windows["facets"]["columnLineage"]["fields"]
    for column, origin in {"user": "user", "total": "value", "window_start": "at", "window_day": "at"}.items():
        assert [field["field"] for field in origins[column]["inputFields"]] == [origin]
    assert "windows" in [each["table"] for each in datasets_of_check(lake.config, pipeline.name)["inputs"]]


def test_without_a_source_the_datasets_still_have_names(tmp_path: Path) -> None:
    told = datasets_of_driver(Lake(tmp_path).config, session_pipeline(where="value > 0"))
    assert told["inputs"][0]["name"].endswith("/warehouse/events")
    assert set(told["inputs"][0]["facets"]) == {"dataSource"}
    assert len(told["outputs"]) == 4


def test_tables_in_a_bucket_have_names_of_the_bucket() -> None:
    warehouse = Warehouse("s3://lake/tables", {"aws_secret_access_key": "hush"})
    path = PipelineTables(warehouse, "sessions").path("results")
    assert dataset_name(path, warehouse.options) == DatasetName("s3://lake", "tables/sessions/results")


def test_columns_within_a_struct_are_told_too() -> None:
    place = pa.struct([("town", pa.string()), ("at", pa.struct([("lat", pa.float64())]))])
    assert schema_facet(pa.schema([("place", place), ("tags", pa.list_(pa.string()))])) == {
        "fields": [
            {
                "name": "place",
                "type": "struct",
                "fields": [
                    {"name": "town", "type": "string"},
                    {"name": "at", "type": "struct", "fields": [{"name": "lat", "type": "double"}]},
                ],
            },
            {"name": "tags", "type": "array<string>"},
        ]
    }


def test_only_what_a_driver_put_out_while_it_held_the_lease_is_counted(tmp_path: Path, note: Note) -> None:
    hand = ByHand(tmp_path)
    hand.epoch(("ann", at("08:00"), 1), watermark=at("10:00"))
    clock = Clock(clock_at(2)())
    with Lease(hand.tables, "backfill", clock):
        hand.epoch(("ann", at("10:00"), 1), ("bob", at("10:05"), 2), watermark=at("11:00"))
        hand.epoch(("bob", at("10:10"), 4), ("bob", at("13:00"), 4), watermark=at("14:00"))
        clock.now = clock_at(4)()
    hand.epoch(("bob", at("15:00"), 4), watermark=at("18:00"))
    written = written_by_driver(hand.tables, *note())
    assert (written.events, written.version) == (4, 3)
    assert written.tables["results"]["rowCount"] == len(hand.rows("results")) - 2 == 3
    assert written.tables["late"]["rowCount"] == len(hand.rows("late")) == 1
    assert written.tables["epochs"]["rowCount"] == 2
    of_it = [file for file in active_files(hand.tables.open("results")) if file["min.epoch"] in (2, 3)]
    assert written.tables["results"] == {
        "rowCount": 3,
        "size": sum(file["size_bytes"] for file in of_it),
        "fileCount": len(of_it),
    }


def test_files_that_a_clean_up_combined_count_by_their_rows(tmp_path: Path, note: Note) -> None:
    hand = ByHand(tmp_path)
    hand.epoch(("ann", at("08:00"), 1), watermark=at("10:00"))
    clock = Clock(clock_at(2)())
    with Lease(hand.tables, "stream", clock):
        hand.epoch(("ann", at("10:00"), 1), watermark=at("11:00"))
        hand.epoch(("ann", at("12:00"), 1), watermark=at("13:00"))
        compact(hand.tables, "results")
        clock.now = clock_at(4)()
    written = written_by_driver(hand.tables, *note())
    (file,) = active_files(hand.tables.open("results"))
    assert written.tables["results"] == {"rowCount": 2, "size": file["size_bytes"] * 2 // 3, "fileCount": 1}


def test_a_driver_that_was_killed_did_nothing_after_the_next_one_came(tmp_path: Path, note: Note) -> None:
    hand = ByHand(tmp_path)
    killed = Lease(hand.tables, "stream", clock_at(1))
    with killed:
        hand.epoch(("ann", at("08:00"), 1), watermark=at("10:00"))
    with Lease(hand.tables, "stream", clock_at(2)):
        hand.epoch(("ann", at("12:00"), 1), watermark=at("13:00"))
    assert written_by_driver(hand.tables, killed.holder.acquired_at).tables["results"]["rowCount"] == 1


def test_a_driver_that_waited_does_not_count_the_epochs_of_the_one_before(tmp_path: Path, note: Note) -> None:
    hand = ByHand(tmp_path)
    clock = Clock(clock_at(1)())
    first = Lease(hand.tables, "stream --available-now", clock)

    def wait(holder: Holder) -> bool:
        hand.epoch(("ann", at("08:00"), 1), watermark=at("10:00"))
        clock.now = clock_at(2)()
        first.__exit__(None, None, None)
        assert written_by_driver(hand.tables, *note()).events == 1
        return True

    first.__enter__()
    with Lease(hand.tables, "stream --available-now", clock, wait):
        clock.now = clock_at(3)()
    assert note() == (clock_at(2)(), clock_at(3)())
    nothing = {name: {"rowCount": 0, "size": 0, "fileCount": 0} for name in PUBLISHED}
    assert written_by_driver(hand.tables, *note()) == Written(0, None, nothing)


def test_a_command_that_nobody_asked_notes_nothing_and_a_note_that_cannot_be_kept_ends_no_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand = ByHand(tmp_path)
    hand.epoch(("ann", at("08:00"), 1), watermark=at("10:00"))
    (tmp_path / "a file").write_text("")
    before = set(tmp_path.iterdir())
    monkeypatch.delenv(LEASE_NOTE, raising=False)
    with Lease(hand.tables, "stream", clock_at(2)):
        assert set(tmp_path.iterdir()) == before
    monkeypatch.setenv(LEASE_NOTE, str(tmp_path / "a file" / "driven.json"))
    with Lease(hand.tables, "stream", clock_at(3)):
        assert set(tmp_path.iterdir()) == before


def test_after_a_restore_the_source_has_the_version_that_the_tables_follow_from(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    for number in range(3):
        lake.append(("ann", at(f"1{number}:00"), 1))
    hand = ByHand(tmp_path)
    first = hand.epoch(("ann", at("10:00"), 1), watermark=at("11:00"))
    back = hand.head()
    hand.epoch(("ann", at("12:00"), 1), watermark=at("13:00"))
    restore(hand.tables, back, clock_at(5)())
    told = datasets_of_driver(lake.config, session_pipeline(), clock_at(4)())
    position = first.positions["events"].version
    assert told["inputs"][0]["facets"]["version"] == {"datasetVersion": str(position)}
    assert told["inputs"][0]["inputFacets"] == {"inputStatistics": {"rowCount": 0}}
    assert table(told, "results")["outputFacets"]["outputStatistics"]["rowCount"] == 0


def test_the_command_shows_what_comes_from_where_and_prints_the_facets(project: Project) -> None:
    Lake(project.folder).append(("ann", at("10:00"), 1))
    code, told = project.tidegate("tables", "lineage", "sessions")
    assert code == 0
    assert "reads   events" in told
    assert "total         value  aggregation     Sum(value)" in told
    data = project.data("tables", "lineage", "sessions")
    assert data["pipeline"] == "sessions"
    checked = project.data("tables", "lineage", "sessions", "--command", "quality")
    assert [each["table"] for each in checked["inputs"]] == ["results", "late", "rejects", "epochs", "state"]
    assert [each["table"] for each in checked["outputs"]] == ["quality"]
    counted = project.data("tables", "lineage", "sessions", "--since", "2024-03-01", "--until", "2024-03-02")
    assert table(counted, "results")["outputFacets"]["outputStatistics"]["rowCount"] == 0
    assert project.tidegate("tables", "lineage", "sessions", "--until", "2024-03-02")[0] == 2
    assert project.tidegate("tables", "lineage", "nobody")[0] == 2
    code, told = project.tidegate("tables", "lineage", "sessions", "--since", "soon")
    assert code == 2
    assert "--since" in told


def test_sql_that_only_spark_knows_needs_no_spark(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.append(("ann", at("10:00"), 1))
    hard = hourly_pipeline(columns={"hash": "xxhash64(user, value)"}, key=("hash",))
    told = datasets_of_driver(lake.config, hard)
    assert "schema" not in table(told, "results")["facets"], "there is no table yet, and only Spark knows the type"


@pytest.mark.parametrize(
    ("observed", "metrics"),
    [("7.5", {"max": 7.5}), ("2024-03-01", {}), ("nan", {}), ("inf", {}), ("-Infinity", {}), ("", {})],
)
def test_a_metric_of_a_column_is_a_number_that_json_has(observed: str, metrics: dict[str, float]) -> None:
    check = {
        "suite": "new final windows",
        "expectation": "expect_column_max_to_be_between",
        "about": "total",
        "severity": "warning",
        "success": True,
        "observed": observed,
    }
    facets = check_facets({"windows": 1, "checks": [check]}, ["total"])
    columns = facets["results"]["dataQualityMetrics"]["columnMetrics"]
    assert columns == ({"total": metrics} if metrics else {})
    json.dumps(facets, allow_nan=False)


ACCOUNT = {"AZURE_STORAGE_ACCOUNT_NAME": "acme", "azure_storage_account_key": "hush"}


@pytest.mark.parametrize(
    ("path", "convention"),
    [
        ("/lake/raw/events", LocalFileSystem("/lake/raw/events")),
        ("/lake/raw/../events/", LocalFileSystem("/lake/events")),
        ("file:///lake/my%20events", LocalFileSystem("/lake/my events")),
        ("s3://lake/raw/events", S3("lake", "raw/events")),
        ("s3a://lake/raw/events/", S3("lake", "raw/events")),
        ("gcs://lake/raw/events", GCS("lake", "raw/events")),
        ("gs://lake/raw/events", GCS("lake", "raw/events")),
        ("abfs://lake@acme.dfs.core.windows.net/events", ABFSS("lake", "acme", "events")),
        ("az://lake/events", ABFSS("lake", "acme", "events")),
        ("abfss://lake/events", ABFSS("lake", "acme", "events")),
        ("abfss://lake@other.dfs.core.windows.net/events", ABFSS("lake", "other", "events")),
        ("wasb://lake@acme.dfs.core.windows.net/events", WASBS("lake", "acme", "events")),
        ("hdfs://node:8020/raw/events", HDFS("node", "8020", "/raw/events")),
    ],
)
def test_a_place_has_the_name_that_other_tools_give_it(path: str, convention: DatasetNaming) -> None:
    assert dataset_name(path, ACCOUNT) == DatasetName(convention.get_namespace(), convention.get_name())


@pytest.mark.parametrize("scheme", ["az", "abfs", "abfss"])
def test_the_environment_may_name_the_account(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "acme")
    place = f"{scheme}://lake/events"
    assert dataset_name(place).namespace == ABFSS("lake", "acme", "events").get_namespace()
    options = {"account_name": "other"}
    assert dataset_name(place, options).namespace == ABFSS("lake", "other", "events").get_namespace()


def test_a_store_that_the_convention_does_not_name_keeps_its_scheme() -> None:
    assert dataset_name("az://lake/events") == DatasetName("az://lake", "/events")
    assert dataset_name("ofs://service/volume/events") == DatasetName("ofs://service", "/volume/events")
