"""Spark's format `tidegate`, called as Spark calls it: options, filters, batches, and which queries are refused."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark import cloudpickle
from pyspark.errors import AnalysisException
from pyspark.sql.types import IntegerType, StructType

from tests.lake import Clock, at
from tests.pipelines.by_hand import ByHand
from tests.pipelines.observe.reading.query import Query, values_of
from tests.pipelines.observe.reading.targets import project, visits_of
from tidegate import read_view, register_format
from tidegate.pipelines.definition import results
from tidegate.pipelines.definition.config import WindowsTable
from tidegate.pipelines.engine.spark.versions import to_arrow
from tidegate.pipelines.errors import Refused, UsageError
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.snapshots.forget import forget
from tidegate.pipelines.ledger.snapshots.publish_windows import make_windows, publish_windows
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.ledger.snapshots.retention import Retention, vacuum
from tidegate.pipelines.observe.reading import data_source, reached
from tidegate.pipelines.observe.reading.data_source import TidegateFormat
from tidegate.pipelines.observe.reading.target import TABLES
from tidegate.pipelines.storage.warehouse import Warehouse
from tidegate.windowing.time import to_millis


@pytest.fixture(scope="module")
def visits_once(tmp_path_factory: pytest.TempPathFactory) -> ByHand:
    return visits_of(tmp_path_factory.mktemp("visits"))


@pytest.fixture
def visits(visits_once: ByHand, tmp_path: Path) -> ByHand:
    """A copy of the pipeline that a test may change."""
    return replace(visits_once, folder=shutil.copytree(visits_once.folder, tmp_path / "visits"))


def options_of(made: ByHand, **options: str) -> dict[str, str]:
    return {"path": "visits", "config": str(made.folder / "tidegate.toml"), **options}


def query_of(made: ByHand, **options: str) -> Query:
    return Query(made.folder / "checkpoint", made.folder / "target", options_of(made, **options))


def final_of(made: ByHand) -> Counter[tuple[Any, ...]]:
    """Return the final windows, computed by the functions in memory."""
    latest = results.latest(made.rows("results"), ("user",))
    rows = results.final(latest, made.head().manifest.watermark)
    return Counter(tuple(values) for _, *values in values_of(rows))


def read(made: ByHand, **options: str) -> tuple[pa.Table, int]:
    """Return the rows that the tasks yield, and the number of files that they read."""
    format_ = TidegateFormat(options_of(made, **options))
    schema = format_.schema()
    reader = format_.reader(schema)
    parts = list(reader.partitions())
    batches = [batch for part in parts for batch in cloudpickle.loads(cloudpickle.dumps(reader)).read(part)]
    files = sum(len(part.view.files) for part in parts if isinstance(part, data_source._Part))
    return (pa.Table.from_batches(batches) if batches else to_arrow(schema).empty_table()), files


def test_each_view_has_the_rows_of_its_table(visits: ByHand) -> None:
    with pytest.raises(Refused, match="`tidegate windows build visits` creates it"):
        read(visits, view="windows")
    make_windows(visits.tables, ("user",), WindowsTable(partition_by="day"))
    publish_windows(visits.tables, visits.head().manifest)
    latest = results.latest(visits.rows("results"), ("user",))
    expected = {
        "final": len(results.final(latest, visits.head().manifest.watermark)),
        "latest": len(latest),
        "state": len(visits.rows("state")) - 1,
    }
    for view, table in TABLES.items():
        rows, _ = read(visits, view=view)
        assert len(rows) == expected.get(view, len(visits.rows(table))), view
    assert expected["final"] < expected["latest"]


def test_times_exclude_files_and_keys_exclude_rows(visits: ByHand) -> None:
    """The log has no statistics of keys, because a forgotten key must not be in it."""
    _, every = read(visits, view="all")
    for where, users, fewer in (
        ("user = 'zoë'", {"zoë"}, False),
        ("user IN ('cem', 'nobody')", {"cem"}, False),
        ("user IS NOT NULL AND 'b' <= user", {"bob", "zoë", "cem"}, False),
        ("user IS NULL", set(), False),
        ("window_end > '2024-03-01 12:10:00'", {"cem"}, True),
        ("window_end > TIMESTAMP '2024-03-01T13:10:00+01:00'", {"cem"}, True),
        ("(window_end <= '2024-03-01 10:45:00Z') AND user = 'bob' AND NOT stale IS NULL", {"bob"}, False),
        ("epoch BETWEEN 3 AND 9 AND window_end <= '2024-03-01 11:00:00' AND total > -1", {"bob"}, True),
        ("stale = false AND epoch >= 3", {"bob", "cem"}, True),
    ):
        rows, files = read(visits, where=where, view="all")
        assert set(rows["user"].to_pylist()) == users, where
        assert (files < every) == fewer, where


@pytest.mark.parametrize(
    ("where", "fragment"),
    [
        ("user = ", "is not a condition"),
        ("usr = 'ann'", "no column usr; the columns are user, window_id"),
        ("user = 'ann' OR user = 'bob'", "Put the rest in the query"),
        ("upper(user) = 'ANN'", "Put the rest in the query"),
        ("NOT user = 'ann'", "Put the rest in the query"),
        ("total = 'ann'", "'ann' is not a value of column 'total'"),
        ("total > 1.5", "is not a value of column 'total'"),
        ("user = 1", "1 is not a value of column 'user'"),
        ("user = 'O''Brien'", 'write a string with a quote as "O\'Brien"'),
        ("user = -'ann'", "-'ann' is not a value of column 'user'"),
        ("window_end > 'noon'", "is not a value of column 'window_end'"),
    ],
)
def test_a_condition_that_is_not_taken_is_refused(visits: ByHand, where: str, fragment: str) -> None:
    with pytest.raises(UsageError, match=fragment):
        read(visits, where=where)


def test_rows_without_spark_take_the_conditions_of_the_format_and_those_of_arrow(visits: ByHand) -> None:
    config = str(visits.folder / "tidegate.toml")
    for where in ("user = 'bob' AND window_end > '2024-03-01'", pc.field("user") == "bob"):
        rows = read_view("visits", columns=["user"], where=where, config=config)
        assert rows.to_pydict() == {"user": ["bob"]}
    for wrong, told in (
        ({"where": "usr = 'bob'"}, "no column usr; the columns are user"),
        ({"where": pc.field("usr") == "bob"}, r"where: no column 'usr'. The columns are user \(string\), "),
        ({"where": pc.field("window_end") > "2024-03-01"}, r"no kernel matching .* window_end \(timestamp"),
        ({"where": pc.field("total")}, "where: Filter expression must evaluate to bool"),
        ({"columns": "user"}, r"columns = 'user': give a list, such as \['user'\]"),
        ({"columns": ["usr"]}, "has no column 'usr': it has user"),
    ):
        with pytest.raises(UsageError, match=told):
            read_view("visits", config=config, **wrong)  # type: ignore[arg-type]


def test_values_of_every_type_may_be_asked_for_nulls(visits: ByHand) -> None:
    for where, number in (("departed IS NULL AND shards IS NOT NULL AND phases IS NOT NULL", 3), ("shards IS NULL", 0)):
        rows, _ = read(visits, view="epochs", where=where)
        assert len(rows) == number, where


def test_a_stream_of_some_keys_has_their_corrections(visits: ByHand) -> None:
    query = query_of(visits, where="user IN ('bob', 'dan')")
    query.run()
    before = visits.head()
    visits.epoch(("dan", at("13:20"), 9), watermark=at("16:00"))
    query.run()
    assert {row[0] for row in query.total()} == {"bob", "dan"}
    restore(visits.tables, before, to_millis(at("20:00")))
    query.run()
    assert query.total() == Counter({row: count for row, count in final_of(visits).items() if row[0] == "bob"})
    with pytest.raises(UsageError, match="no column op"):
        query_of(visits, where="op = '-'").reader()


def erase(made: ByHand, key: str) -> int:
    """Forget a key, as the command does, and return the number of its epoch."""
    with Lease(made.tables, "forget", Clock()):
        epoch = forget(made.tables, made.pipeline, [[key]], to_millis(at("20:00"))).epoch
    assert epoch is not None
    return epoch


@pytest.mark.parametrize(
    ("options", "fragment"),
    [
        ({"path": ""}, "name a pipeline"),
        ({"path": "visit"}, "unknown pipeline 'visit': .* has visits"),
        ({"view": "newest"}, "the views are final, latest, all, windows, late, rejects, epochs, state"),
        ({"veiw": "all"}, "the options are path, view, where, config, forgottenThrough"),
        ({"forgottenThrough": "all"}, "give the number of the epoch"),
        ({"view": "state"}, "a stream reads final, latest, all, late, rejects, epochs"),
    ],
)
def test_a_wrong_option_is_refused_with_what_is_right(visits: ByHand, options: dict[str, str], fragment: str) -> None:
    with pytest.raises(UsageError, match=fragment):
        Query(visits.folder, visits.folder, {**options_of(visits), **options}).reader()


def test_the_format_of_a_project_finds_its_pipelines_in_another_process(visits: ByHand) -> None:
    made = data_source.format_of(visits.folder / "tidegate.toml")
    format_ = cloudpickle.loads(cloudpickle.dumps(made))({"path": "visits"})
    assert made.name() == "tidegate"
    assert "window_id" in format_.schema().names


def test_columns_of_a_frame_may_be_fewer_and_of_other_types(visits: ByHand) -> None:
    """Spark passes the schema of the frame: the result of `schema()`, or the one that a user gives."""
    schema = StructType().add("total", IntegerType()).add("user", "string")
    reader = TidegateFormat(options_of(visits)).reader(schema)
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert {batch.schema.field("total").type for batch in batches} == {pa.int32()}  # type: ignore[union-attr]


@pytest.mark.first(1)
@pytest.mark.parametrize(("before", "after"), [({}, {"view": "latest"}), ({"where": "user = 'bob'"}, {})])
def test_a_query_does_not_go_on_with_other_rows(visits: ByHand, before: dict[str, str], after: dict[str, str]) -> None:
    query_of(visits, **before).run()
    visits.epoch(watermark=at("15:00"))
    query = query_of(visits, **after)
    last = json.loads((query.checkpoint / "offsets" / "0").read_text())
    told = "so its target would have a mix of both. Start the query with a new checkpoint folder"
    with pytest.raises(Refused, match=told):
        query.reader().latestOffset(last)
    with pytest.raises(Refused, match=told):
        query.run()
    anew = Query(visits.folder / "new_checkpoint", visits.folder / "new_target", options_of(visits, **after))
    anew.run()
    assert sum(anew.total().values()) == read(visits, **after)[0].num_rows


def test_offsets_from_before_they_said_what_was_read_are_gone_on_with(visits: ByHand) -> None:
    query = query_of(visits)
    query.run()
    for file in (query.checkpoint / "offsets").iterdir():
        offset = json.loads(file.read_text())
        file.write_text(json.dumps({name: value for name, value in offset.items() if name not in ("view", "where")}))
    visits.epoch(watermark=at("15:00"))
    query.run()
    assert query.total() == final_of(visits)


def test_a_batch_is_the_same_when_it_is_read_again_after_a_restore(visits: ByHand) -> None:
    query = query_of(visits)
    before = visits.head()
    query.run()
    visits.epoch(("bob", at("10:15"), 1), ("dan", at("13:20"), 9), watermark=at("15:00"))
    query.run()
    written = {file.name: file.read_text() for file in query.target.iterdir()}
    restore(visits.tables, before, to_millis(at("20:00")))
    for commit in (query.checkpoint / "commits").iterdir():
        commit.unlink()
    query.run()
    assert {name: (query.target / name).read_text() for name in written} == written
    assert query.total() == final_of(visits)


@pytest.mark.first(1)
@pytest.mark.parametrize("view", ["all", "late", "epochs"])
def test_a_stream_of_rows_as_they_came_follows_epochs_and_refuses_a_restore(visits: ByHand, view: str) -> None:
    query = query_of(visits, view=view)
    query.run()
    before = visits.head()
    visits.epoch(("ann", at("09:00"), 1), ("dan", at("13:20"), 9), watermark=at("15:00"))
    query.run()
    assert query.total(signed=False) == Counter(map(tuple, values_of(visits.rows(TABLES[view]))))
    restore(visits.tables, before, to_millis(at("20:00")), keep_stale=True)
    with pytest.raises(Refused, match=r"only adds rows; view final also retracts rows. Start the query with a new"):
        query.run()


@pytest.mark.long
def test_rows_that_are_not_kept_can_not_be_taken_back(visits: ByHand) -> None:
    query = query_of(visits)
    before = visits.head()
    visits.epoch(("dan", at("13:20"), 9), watermark=at("15:00"))
    query.run()
    restore(visits.tables, before, to_millis(at("20:00")))
    with Lease(visits.tables, "vacuum", Clock()):
        vacuum(visits.tables, Retention(snapshots=1, age=0), to_millis(at("20:00", day=100_000)))
    with pytest.raises(Refused, match=r"retain_log_hours.*Start the query with a new checkpoint folder and an empty"):
        query.run()
    anew = Query(visits.folder / "new checkpoint", visits.folder / "empty target", query.options)
    anew.run()
    assert anew.total() == final_of(visits)


def test_a_key_that_was_forgotten_has_to_be_erased_downstream(visits: ByHand) -> None:
    query = query_of(visits)
    query.run()
    epoch = erase(visits, "bob")
    with pytest.raises(Refused, match=f'"forgottenThrough", "{epoch}"'):
        query.run()
    for file in query.target.iterdir():
        file.write_text(json.dumps([row for row in json.loads(file.read_text()) if row[1] != "bob"]))
    on = Query(query.checkpoint, query.target, {**query.options, "forgottenThrough": str(epoch)})
    on.run()
    assert on.total() == final_of(visits)
    erase(visits, "ann")
    with pytest.raises(Refused, match="forgot a key"):
        on.run()


@pytest.mark.long
def test_a_query_that_stood_still_until_nobody_knows_what_was_forgotten_is_refused(visits: ByHand) -> None:
    query = query_of(visits)
    query.run()
    erase(visits, "bob")
    for hour in (13, 14, 15):
        visits.epoch(("dan", at(f"{hour}:00"), 1), watermark=at(f"{hour}:30"))
    anew = Query(visits.folder / "new checkpoint", visits.folder / "empty target", query.options)
    anew.run()
    with Lease(visits.tables, "vacuum", Clock()):
        vacuum(visits.tables, Retention(1, 0, epochs=0), to_millis(at("20:00", day=100_000)))
    assert visits.rows("epochs")["epoch"].to_pylist() == [7]
    visits.epoch(("dan", at("16:00"), 1), watermark=at("16:30"))
    with pytest.raises(Refused, match=r"epochs from 7 on \(retain_epochs_days.*Start the query with a new checkpoint"):
        query.run()
    anew.run()
    assert anew.total() == final_of(visits)


def test_results_that_a_restore_gave_up_can_not_be_taken_back(visits: ByHand) -> None:
    query = query_of(visits)
    query.run()
    lost = max(Path(visits.tables.path("results")).glob("results-000001-*.parquet"))
    lost.write_bytes(lost.read_bytes()[:40] + b"?" + lost.read_bytes()[41:])
    restore(visits.tables, visits.head(), to_millis(at("20:00")), give_up=lambda told: None)
    with pytest.raises(Refused, match=r"--give-up-results. gave up rows .*Start the query with a new checkpoint"):
        query.run()
    anew = Query(visits.folder / "new checkpoint", visits.folder / "empty target", query.options)
    anew.run()
    assert anew.total() == final_of(visits)


def test_tables_that_were_made_anew_are_not_gone_on_with(visits: ByHand) -> None:
    query = query_of(visits)
    query.run()
    Warehouse(str(visits.folder / "warehouse")).delete_folder(visits.tables.path("").rstrip("/"))
    for hour in ("11:30", "12:30", "13:30", "14:30"):
        visits.epoch(("ann", at("10:00"), 1), watermark=at(hour))
    with pytest.raises(
        Refused,
        match=r"recreated or restored from a backup, or .* another query's. Start the query with a new checkpoint",
    ):
        query.run()


def test_a_stream_waits_while_a_restore_is_published(visits: ByHand, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a driver dies in between, only some tables have the restore: the query says what to do."""
    from tidegate.pipelines.ledger.snapshots import restore as module
    from tidegate.pipelines.ledger.snapshots.publish import publish, publish_table

    query = query_of(visits)
    before = visits.head()
    visits.epoch(("dan", at("13:20"), 9), watermark=at("15:00"))
    query.run()
    monkeypatch.setattr(module, "publish", lambda tables, manifest: publish_table(tables, manifest, "results"))
    monkeypatch.setattr(reached, "PATIENCE", 0.0)
    manifest = restore(visits.tables, before, to_millis(at("20:00")))
    with pytest.raises(Refused, match="then start the query again"):
        query.run()
    publish(visits.tables, manifest)
    query.run()
    assert query.total() == final_of(visits)


def test_a_format_that_spark_found_by_itself_can_have_no_other_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(format_: object) -> None:
        raise AnalysisException("there is one", errorClass="DATA_SOURCE_ALREADY_EXISTS", messageParameters={})

    spark: Any = SimpleNamespace(dataSource=SimpleNamespace(register=refuse))
    file = project(tmp_path, "visits")
    monkeypatch.setenv("TIDEGATE_CONFIG", str(file))
    register_format(spark)
    register_format(spark, file)
    other = tmp_path / "other.toml"
    with pytest.raises(UsageError, match=r'\.option\("config", \'.*other\.toml\'\), or set TIDEGATE_CONFIG before'):
        register_format(spark, other)
