"""A source of another kind, written by a user: the pipeline, the messages, and the fields of the manifest."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.lake import EVENTS, LOCAL, Lake, Row, at, hourly_pipeline
from tests.listed_files import ListedFiles
from tests.recovery.arrivals import differences, outcome, run
from tidegate.pipelines import DeltaSource, Input, Pipeline
from tidegate.pipelines.ask.explain import choices_of_source, explanation_of
from tidegate.pipelines.definition.binding import bind
from tidegate.pipelines.definition.config.opened import warehouse_of
from tidegate.pipelines.epoch.open_input import bind_to_source
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.project.cli import run as tidegate
from tidegate.pipelines.sources.commits import FilePart
from tidegate.pipelines.sources.open_source import open_source
from tidegate.pipelines.storage.warehouse import Warehouse
from tidegate.pipelines.testing import PipelineHarness
from tidegate.windowing.compute import IntervalJoin
from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.time import to_millis

LISTED = hourly_pipeline(source=ListedFiles("events.list", timestamp="at"))


def add(lake: Lake, *rows: Row, time: int | None = None) -> str:
    """Add a commit of one file to the list, and return the file's name."""
    path = Path(lake.path("events.list"))
    path.parent.mkdir(parents=True, exist_ok=True)
    number = path.read_text().count("\n") if path.exists() else 0
    columns = list(zip(*rows, strict=True))
    table = pa.table([pa.array(list(values), kind.type) for values, kind in zip(columns, EVENTS, strict=True)], EVENTS)
    pq.write_table(table, path.parent / f"{number}.parquet")
    line = {"time": to_millis(at("12:00")) + number if time is None else time, "files": [f"{number}.parquet"]}
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
    return f"{number}.parquet"


def replace_line(lake: Lake, number: int, line: str) -> None:
    path = Path(lake.path("events.list"))
    lines = path.read_text().splitlines()
    lines[number] = line
    path.write_text("".join(f"{text}\n" for text in lines))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Two commits of a list."""
    lake = Lake(tmp_path)
    add(lake, ("ann", at("01:00"), 1), ("bob", at("01:30"), 2))
    add(lake, ("ann", at("03:00"), 3))
    return lake


def stream(lake: Lake, pipeline: Pipeline = LISTED) -> None:
    run(LOCAL, lake, pipeline=pipeline)


def test_the_manifest_keeps_the_fields_of_the_source_beside_ours(lake: Lake) -> None:
    stream(lake)
    position = json.loads(lake.snapshot(LISTED).manifest.model_dump_json())["positions"]["events.list"]
    assert list(position) == ["version", "frontier", "files", "digest"]
    assert (position["version"], len(position["digest"])) == (1, 32)


def test_a_run_goes_on_where_the_last_one_ended(lake: Lake) -> None:
    stream(lake)
    add(lake, ("bob", at("05:00"), 4))
    stream(lake)
    assert [row["events_in"] for row in lake.rows(LISTED, "epochs").sort_by("epoch").to_pylist()][-1] == 1
    assert lake.snapshot(LISTED).manifest.positions["events.list"].version == 2


def test_the_same_events_in_a_table_have_the_same_fingerprint_and_the_same_schemas(lake: Lake) -> None:
    listed = bind(LISTED, EVENTS, EVENTS)
    table = bind(replace(LISTED, source=DeltaSource("events", timestamp="at")), EVENTS, EVENTS)
    assert listed.fingerprint == table.fingerprint
    assert listed.fingerprint != bind(replace(LISTED, key=()), EVENTS, EVENTS).fingerprint


def test_explain_says_that_the_tasks_read_it(lake: Lake) -> None:
    steps = explanation_of(LISTED, choices_of_source(lake.config, LISTED)).steps
    assert "read the files of events.list: key user, time at, columns value" in [
        step.does for step in steps if step.where == "Python task"
    ]


def test_the_harness_of_users_runs_it(lake: Lake) -> None:
    harness = PipelineHarness(LISTED, EVENTS)
    harness.commit(
        [{"user": "ann", "at": at("01:00"), "value": 1}, {"user": "ann", "at": at("05:00"), "value": 2}], at=at("06:00")
    )
    harness.run()
    assert [row["total"] for row in harness.results()] == [1]


def test_explain_goes_on_without_a_list(tmp_path: Path) -> None:
    assert choices_of_source(Lake(tmp_path).config, LISTED) is None


def test_a_missing_column_is_named_with_its_list(lake: Lake) -> None:
    with pytest.raises(Refused, match=r"table 'events\.list' has no column 'usr'; did you mean 'user'"):
        bind_to_source(lake.config, replace(LISTED, key=("usr",)))


@pytest.mark.first(2)
@pytest.mark.parametrize("command", ["explain", "why", "results", "quality", "snapshot show"])
def test_every_command_that_looks_at_a_pipeline_works(
    lake: Lake, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Quality checks all tables with Great Expectations; `why` counts the unread lines."""
    stream(lake)
    add(lake, ("bob", at("05:00"), 4))
    config = lake.folder / "tidegate.toml"
    config.write_text(f'warehouse = "warehouse"\n[pipelines.hours]\nobject = "{__name__}:LISTED"\nstart = 2024-03-01\n')
    assert tidegate([*command.split(), "hours", "--config", str(config), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    expected = {
        "explain": lambda: told["missing_tables"] == [],
        "why": lambda: told["unread_versions"] == {"events.list": 1},
        "quality": lambda: told["quality"] == "passed",
        "snapshot show": lambda: told["manifest"]["positions"]["events.list"]["version"] == 1,
    }
    assert expected.get(command, lambda: told)()


def test_a_list_and_a_table_are_joined(lake: Lake) -> None:
    lake.append(("ann", at("01:30"), 10), table="prices")
    kind = pa.struct([("total", pa.int64())])

    def total(left: Any, right: Any) -> dict[str, int]:
        return {"total": left["value"] + right["value"]}

    join = IntervalJoin(timedelta(0), timedelta(hours=1), join=total, result_type=kind)
    pipeline = replace(LISTED, name="joined", compute=join, right=Input(source=DeltaSource("prices", timestamp="at")))
    stream(lake, pipeline)
    assert lake.rows(pipeline, "results")["total"].to_pylist() == [11]
    positions = lake.snapshot(pipeline).manifest.positions
    assert {name: sorted(position.own) for name, position in positions.items()} == {
        "events.list": ["digest"],
        "prices": ["table_id"],
    }


# --- what is wrong with a list ---------------------------------------------------------------------

BROKEN: dict[str, tuple[str, str]] = {
    "no JSON": ("{", r"line 2: '\{' is no commit .*Write it as .*run again; nothing has been read"),
    "no files": ('{"time": 1}', "line 2: .*KeyError: 'files'.*Write it as"),
    "no time": ('{"time": "noon", "files": []}', "line 2: .*time must be a whole number.*Write it as"),
    "files of another kind": ('{"time": 1, "files": [3]}', "line 2: .*files a list of names.*Write it as"),
}


def test_a_bad_line_is_named_with_the_way_out(lake: Lake) -> None:
    whole = Path(lake.path("events.list")).read_text().splitlines()[1]
    for line, message in BROKEN.values():
        replace_line(lake, 1, line)
        with pytest.raises(Refused, match=rf"events\.list, {message}"):
            stream(lake)
    replace_line(lake, 1, whole)
    stream(lake)
    assert lake.snapshot(LISTED).manifest.positions["events.list"].version == 1


def test_a_line_that_is_being_written_is_not_there_yet(lake: Lake) -> None:
    path = Path(lake.path("events.list"))
    whole = path.read_text()
    path.write_text(whole[:-20])
    stream(lake)
    assert lake.snapshot(LISTED).manifest.positions["events.list"].version == 0
    path.write_text(whole)
    stream(lake)
    assert lake.snapshot(LISTED).manifest.positions["events.list"].version == 1


def test_a_file_that_is_not_there_is_named_before_anything_is_read(lake: Lake) -> None:
    file = Path(lake.path("1.parquet"))
    content = file.read_bytes()
    file.unlink()
    with pytest.raises(
        Refused, match=r"events\.list, line 2: file 1\.parquet is not there\. Put it back, and run again"
    ):
        stream(lake)
    file.write_bytes(content)
    stream(lake)
    assert len(lake.rows(LISTED, "results")) > 0


def test_a_file_that_goes_while_it_is_read_is_named(lake: Lake) -> None:
    source = open_source(LISTED.source, warehouse_of(lake.config))
    (commit, _) = source.unread(-1)
    reader = source.reader(EVENTS)
    Path(lake.path("0.parquet")).unlink()
    with (
        pytest.raises(Refused, match=r"events\.list: file 0\.parquet is missing.*Put it back"),
        reader.open(FilePart.of(commit.files[0], 0, 0)),
    ):
        pass


@pytest.mark.parametrize("name", ["0.parquet", "1.parquet"])
def test_a_damaged_file_is_named(lake: Lake, name: str) -> None:
    """The first file also determines the columns."""
    Path(lake.path(name)).write_bytes(b"no Parquet")
    with pytest.raises(Refused, match=rf"events\.list: file {name} can't be read: .*Put the file back as it was"):
        stream(lake)


CHANGED: dict[str, tuple[Callable[[Lake], None], str]] = {
    "shortened": (
        lambda lake: Path(lake.path("events.list")).write_text(  # type: ignore[arg-type, return-value]
            Path(lake.path("events.list")).read_text().splitlines()[0] + "\n"
        ),
        "was shortened: it has 1 lines, and 2 of it were read",
    ),
    "another line": (lambda lake: replace_line(lake, 0, '{"time": 1, "files": ["1.parquet"]}'), "changed after it was"),
}


def test_a_list_that_is_not_what_was_read_is_refused_with_the_way_out(lake: Lake) -> None:
    stream(lake)
    before, path = outcome(lake, LISTED), Path(lake.path("events.list"))
    whole = path.read_text()
    for change, message in CHANGED.values():
        change(lake)
        with pytest.raises(Refused, match=rf"{message}.*Put the list back as it was, or start a new pipeline"):
            stream(lake)
        path.write_text(whole)
    add(lake, ("ann", at("09:00"), 1))
    stream(lake)
    assert differences(outcome(lake, LISTED), before) != {}, "and put back, it is read on"


def test_a_position_of_another_kind_of_source_is_refused_by_either(lake: Lake) -> None:
    stream(lake)
    position = lake.snapshot(LISTED).manifest.positions["events.list"]
    lake.append(("ann", at("01:00"), 1))
    table = open_source(DeltaSource("events", timestamp="at"), warehouse_of(lake.config))
    with pytest.raises(Refused, match="has a field that this tidegate does not know, digest"):
        table.check(position.model_copy(update={"version": 0}))
    of_table = position.model_copy(update={"own": dict(table.of_position(0))})
    with pytest.raises(Refused, match=r"was not taken in a list: it has .*table_id"):
        open_source(LISTED.source, warehouse_of(lake.config)).check(of_table)


# --- what describes no source ----------------------------------------------------------------------


@dataclass(frozen=True)
class HalfDescribed:
    table: str = "events"
    timestamp: str = "at"


@dataclass(frozen=True)
class OpensNothing:
    table: str = "events"
    timestamp: str = "at"
    zone: None = None
    unit: None = None
    not_before: None = None

    def open(self, warehouse: Warehouse) -> object:
        return warehouse


@pytest.mark.parametrize("value", [None, "events", ListedFiles])
def test_what_describes_no_source_is_refused(value: Any) -> None:
    with pytest.raises(IllegalArgument, match=r"source.*give a DeltaSource"):
        replace(LISTED, source=value)
    with pytest.raises(IllegalArgument, match=r"right\.source.*give a DeltaSource"):
        Input(source=value)


def test_a_description_that_lacks_something_is_told_what() -> None:
    with pytest.raises(IllegalArgument, match="your own kind of source also needs not_before, open, unit, zone"):
        replace(LISTED, source=cast("Any", HalfDescribed()))


def test_what_opens_into_no_source_is_told_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"OpensNothing\('events'\)\.open returned a Warehouse.*it lacks active, check"):
        open_source(OpensNothing(), Warehouse(str(tmp_path)))
