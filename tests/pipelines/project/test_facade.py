"""A project in code does what the commands do: the same calls, results and errors; it prints nothing."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
import pyarrow as pa
import pytest
from dateutil.relativedelta import relativedelta
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from tests.lake import Lake, at, hourly_pipeline, session_pipeline
from tests.pipelines.project.cli.project import Project as CommandLine
from tidegate import EpochLimits, Project
from tidegate.pipelines.errors import Refused, TidegateError, UsageError
from tidegate.pipelines.ledger.tables.keys import KeySchema, key_of_texts
from tidegate.pipelines.observe.report.answer import Answer
from tidegate.pipelines.observe.report.columns import OBJECT, Column, Table
from tidegate.pipelines.observe.report.values import json_text
from tidegate.pipelines.project.given import KeyText, key_text, length_of, lengths_of, moment_of, slice_of
from tidegate.pipelines.project.progress import Progress, ProgressLine
from tidegate.windowing import (
    EventTimeSessionWindows,
    First,
    ProcessWindowFunction,
    Sum,
    TopN,
    TumblingEventTimeWindows,
    Windows,
)

DAY = date(2024, 3, 1)
ROOT = Path(__file__).parents[3]


def test_columns_whose_names_begin_with_a_dot_are_sorted_by_and_those_with_several_values_are_not(lake: Lake) -> None:
    columns = pa.schema([(".user", pa.string()), ("at", pa.timestamp("us", "UTC")), (".value", pa.int64())])
    lake.write(pa.table([["ann", "bob"], [at("00:10"), at("05:00")], [1, 4]], schema=columns))
    top = {".total": Sum(".value"), "first": First(".value"), "top": TopN(2, by=".value")}
    windows = Windows(EventTimeSessionWindows.with_gap(timedelta(minutes=30)), aggregate=top)
    project = lake.project(session_pipeline(key=(".user",), compute=windows))
    project.stream("sessions", end_of_input=True)
    assert project.results("sessions", sort=".total").rows[".user"].to_pylist() == ["bob", "ann"]
    assert project.verify("sessions", sample="all").require().windows == 2
    with pytest.raises(UsageError, match="--sort top: it has several values per row: give a column with one"):
        project.results("sessions", sort="top")


@pytest.fixture
def project(lake: Lake) -> Project:
    """Sessions in code, on the local engine, with a day of events."""
    lake.append(("ann", at("00:10"), 1), ("ann", at("00:20"), 2), ("bob", at("05:00"), 4))
    return lake.project(session_pipeline())


def test_a_life_in_code(project: Project, lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    plan = project.plan("sessions", DAY, DAY + timedelta(days=1))
    assert [each.state for each in plan.planned] == ["would run"]
    done = project.backfill("sessions", DAY, DAY + timedelta(days=1), slice=timedelta(hours=12))
    assert [(run.state, run.epoch) for run in done.runs] == [("done", 1), ("done", 2)]
    assert done.epoch == 2

    lake.append(("ann", at("06:00", day=1), 8), ("ann", at("00:25"), 16))
    streamed = project.stream("sessions", end_of_input=True)
    assert sum(line["late"] for line in streamed.epochs) == 1

    windows = project.results("sessions", sort="total")
    assert windows.to_arrow().column("total").to_pylist() == [8, 4, 3]
    assert isinstance(windows.to_pandas(), pd.DataFrame)
    assert windows.to_dict() == windows.rows.to_pylist()
    assert "delta_scan" in project.tables.query("sessions", dialect="duckdb").sql

    assert project.late.summary("sessions").open == 1
    reopened = project.late.reopen("sessions", key=("ann",), start=datetime(2024, 3, 1, tzinfo=UTC))
    assert (reopened.rows, reopened.panes, reopened.retracted) == (1, 1, 1)
    assert project.late.summary("sessions").open == 0
    assert project.results("sessions", sort="total").rows["total"].to_pylist() == [19, 8, 4]

    newest = project.runs("sessions").epochs[0]["epoch"]
    assert newest == reopened.epoch
    assert project.snapshots.list("sessions").snapshots[0]["epoch"] == newest
    assert project.snapshots.show("sessions", newest).manifest.epoch == newest
    assert project.snapshots.diff("sessions", 1).before.epoch == 1
    assert project.snapshots.check("sessions").compatible
    assert project.savepoints.create("sessions", "before").entry.manifest.epoch == newest
    assert [entry.name for entry in project.savepoints.list("sessions").savepoints] == ["before"]
    restored = project.restore("sessions", 2)
    assert restored.manifest.parent == 2
    assert project.why("sessions", key=("bob",)).of_key == ("bob",)
    assert project.explain("sessions").explanation.pipeline == "sessions"
    assert project.tables.lineage("sessions").inputs[0]["table"] == "events"
    assert project.forget("sessions", ("bob",)).rows["results"] >= 1
    assert project.tables.vacuum("sessions", snapshots=1, days=0, dry_run=True).dry_run
    assert {each.table for each in project.tables.optimize("sessions").files} == {
        "windows",
        "results",
        "late",
        "rejects",
        "epochs",
    }
    assert project.savepoints.delete("sessions", "before").deleted == "before"
    for name in ("by-hand", "nightly-1", "nightly-2", "nightly-3"):
        project.savepoints.create("sessions", name, keep=2 if name.startswith("nightly") else None)
    assert {each.name for each in project.savepoints.list("sessions").savepoints} == {
        "by-hand",
        "nightly-2",
        "nightly-3",
    }
    timed = project.savepoints.create("sessions", "nightly", keep=2)
    assert (timed.entry.name.startswith("nightly-20"), timed.deleted) == (True, ("nightly-2",))
    for name in ("by-hand", "nightly-3", timed.entry.name):
        project.savepoints.delete("sessions", name)
    assert capsys.readouterr() == ("", "")


def test_every_answer_has_a_table_and_a_frame(project: Project, lake: Lake) -> None:
    plan = project.plan("sessions", DAY, DAY + timedelta(days=1))
    done = project.backfill("sessions", DAY, DAY + timedelta(days=1), slice=timedelta(hours=12))
    lake.append(("ann", at("00:25"), 16))
    project.stream("sessions")
    answers: dict[str, Answer] = {
        "plan": plan,
        "backfill": done,
        **{
            name: attrgetter(name)(project)("sessions")
            for name in (
                "results",
                "late.summary",
                "runs",
                "why",
                "explain",
                "snapshots.list",
                "snapshots.show",
                "tables.optimize",
            )
        },
        "snapshots.diff": project.snapshots.diff("sessions", 1),
        "savepoints.create": project.savepoints.create("sessions", "now"),
        "savepoints.list": project.savepoints.list("sessions"),
        "tables.lineage": project.tables.lineage("sessions"),
        "restore": project.restore("sessions", 2),
    }
    for name, answer in answers.items():
        content: Any = answer.to_dict()
        main = answer.main()
        rows = content if isinstance(content, list) else content[main.name] if main.name else [content]
        table = answer.to_arrow()
        assert len(table) == len(rows), name
        assert len(rows) or name in ("why", "snapshots.show", "snapshots.diff"), name
        assert {*table.column_names} >= {*rows[0]} if rows else True, name
        assert len(answer.to_pandas()) == len(table), name
    numbers = answers["runs"].to_arrow()["epoch"].to_pylist()
    assert numbers == [*range(len(numbers), 0, -1)]
    assert answers["explain"].to_pandas()["where"][0] == "driver"


def test_a_column_of_several_types_is_json() -> None:
    rows = ({"value": 1, "key": {"a": 1}}, {"value": "x", "more": None})
    table = Table("rows", tuple(Column(name, OBJECT) for name in ("value", "key", "more")), rows).to_arrow()
    assert table.to_pylist() == [
        {"value": "1", "key": {"a": 1}, "more": None},
        {"value": '"x"', "key": None, "more": None},
    ]


def test_errors_are_ours_and_have_the_exit_codes_of_the_commands(project: Project) -> None:
    for call, code in (
        (lambda: project.results("others"), 2),
        (lambda: project.results("sessions"), 3),
        (lambda: project.driver.stop("sessions"), 3),
        (lambda: project.driver.unlock("sessions"), 3),
        (lambda: project.driver.alive("sessions"), 1),
        (lambda: project.backfill("sessions"), 2),
        (lambda: project.stream("sessions", interval="5s", end_of_input=True), 2),
        (lambda: project.source.reset("sessions"), 2),
        (lambda: project.savepoints.list("sessions", at=f"{project.config.warehouse_uri}/within"), 2),
        (lambda: project.forget("sessions", ("ann",)), 3),
    ):
        with pytest.raises(TidegateError) as raised:
            call()
        assert raised.value.exit_code == code, raised.value


def test_a_pipeline_without_a_start_begins_anywhere_and_one_with_it_only_there(lake: Lake) -> None:
    lake.append(("ann", at("00:10", day=3), 1))
    later = DAY + timedelta(days=3)
    with pytest.raises(Refused, match="starts at 2024-03-01"):
        lake.project(session_pipeline(), settings={"sessions": {"start": DAY}}).backfill(
            "sessions", later, later + timedelta(days=1)
        )
    assert lake.project(session_pipeline()).backfill("sessions", later, later + timedelta(days=1)).epoch == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"config_file": "tidegate.toml"}, "not both"),
        ({"warehouse": None}, "work: only with warehouse="),
        ({"settings": {"visits": {}}}, "settings names 'visits', but pipelines has sessions"),
        ({"settings": {"sessions": {"pools": "me"}}}, "did you mean pool"),
        ({"settings": {"sessions": {"start": "soon"}}}, "pipelines.sessions.start: give a date"),
        ({"engine": "flink"}, "engine 'flink': give spark or local"),
        ({"engine": "local", "spark": object()}, "not both"),
        ({"engine": None, "spark": object()}, "object is not a Spark session"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_arguments_that_contradict_or_are_faulty_are_usage_errors(
    lake: Lake, arguments: dict[str, Any], told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        lake.project(session_pipeline(), **arguments)


def test_the_engine_of_the_call_goes_before_that_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "tidegate.toml"
    file.write_text('engine = "local"\n')
    assert Project(file).config.engine == "local"
    assert Project(file, engine="spark").config.engine == "spark"
    file.write_text("")
    assert Project(file).config.engine == "spark"


def test_without_arguments_it_is_the_project_that_a_command_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tidegate.toml").write_text('engine = "local"\n')
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    assert Project().config.file == tmp_path / "tidegate.toml"


LOOKS = {
    ("results", "--view", "all"): {"view": "all"},
    ("why",): {},
    ("tables", "lineage"): {},
    ("snapshots", "diff", "1"): {"first": 1},
}


def test_to_dict_is_what_json_prints_and_a_notebook_shows_what_the_terminal_does(
    project: Project, lake: Lake, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "of_the_project", raising=False)
    lake.append(("ann", at("06:00", day=1), 8), ("ann", at("00:25"), 16))
    project.stream("sessions", limits=EpochLimits(commits=1))
    project.savepoints.create("sessions", "first")
    shell = CommandLine.make(lake.folder, capsys)
    with (lake.folder / "tidegate.toml").open("a") as toml:
        toml.write("catchup = false\n")
    for words, arguments in LOOKS.items():
        assert_alike(project, shell, words, arguments)


def assert_alike(project: Project, shell: CommandLine, words: tuple[str, ...], arguments: dict[str, Any]) -> None:
    command = tuple(word for word in words if word.isalpha() and word != "all")
    given = ["sessions", *words[len(command) :]]
    answer: Answer = attrgetter(".".join(command))(project)("sessions", **arguments)
    printed = shell.data(*command, *given)
    plain = json.loads(json.dumps(answer.to_dict(), default=as_json))
    for each in (plain, printed):
        if command == ("why",):
            # These say how long ago something happened.
            each["partitions"] = [{**part, "quiet": None} for part in each["partitions"]]
            each["windows"] = [{**window, "reason": None} for window in each["windows"]]
            each["waits_for"] = {**each["waits_for"], "quiet": None}
    assert plain == printed, words
    page = answer._repr_html_()
    code, told = shell.tidegate(*command, *given)
    assert code == 0
    titles = [line for shown in answer.shown() if not isinstance(shown, str) for line in [shown.title] if line]
    assert [title for title in titles if title not in told] == []
    assert page.count("<table>") == sum(not isinstance(shown, str) for shown in answer.shown())
    assert [title for title in titles if title not in str(answer)] == [], "what print shows"


def as_json(value: object) -> object:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def test_a_notebook_shows_the_text_of_a_key_and_does_not_run_it(lake: Lake) -> None:
    lake.append(("<script>\x1b[2J", at("00:10"), 1))
    project = lake.project(session_pipeline())
    project.stream("sessions", end_of_input=True)
    page = project.results("sessions")._repr_html_()
    assert "&lt;script&gt;\\x1b[2J" in page
    assert "<script>" not in page


def test_print_shows_the_windows_as_a_table(lake: Lake) -> None:
    lake.append(("ann", at("00:10"), 1), ("bob", at("00:10"), 20))
    project = lake.project(session_pipeline())
    project.stream("sessions", end_of_input=True)
    title, columns, ann, bob = str(project.results("sessions", sort="user")).splitlines()
    assert title.startswith("final windows of sessions")
    assert columns.split()[:2] == ["user", "window"]
    assert {ann.split()[0], bob.split()[0]} == {"ann", "bob"}
    assert len(ann) == len(bob), "numbers are aligned to the right"


def test_progress_goes_to_the_callers_function(lake: Lake) -> None:
    lake.append(("ann", at("00:10"), 1))
    heard: list[Progress] = []
    lake.project(session_pipeline(), progress=heard.append).stream("sessions")
    assert {each.pipeline for each in heard} == {"sessions"}
    assert [each.text for each in heard if each.is_step][:3] == ["planned", "operated", "committed"]
    (line,) = [each.text for each in heard if not each.is_step]
    assert line.startswith("epoch 1: 1 in, 0 late, 0 fired, 1 open")


def test_the_line_of_progress_is_overwritten_by_steps_and_kept_by_epochs() -> None:
    out = io.StringIO()
    line = ProgressLine(out)
    for progress in (Progress("v", "committed", True), Progress("v", "ok", True), Progress("v", "epoch 1: 2 in")):
        line(progress)
    line(Progress("v", "next", True))
    assert out.getvalue() == "\rv: committed\rv: ok       \rv: epoch 1: 2 in\n\rv: next"


def test_another_thread_or_a_signal_ends_a_stream_after_its_epoch(lake: Lake) -> None:
    from tidegate.pipelines.run.stopping import StopRequest

    lake.append(("ann", at("00:10"), 1))
    stop = StopRequest()
    heard: list[str] = []

    def hear(progress: Progress) -> None:
        if not progress.is_step:
            heard.append(progress.text)
            stop.make()

    lake.project(session_pipeline(), progress=hear).stream("sessions", interval=timedelta(milliseconds=50), stop=stop)
    assert [text.split(":")[0] for text in heard] == ["epoch 1"]


def test_a_replay_is_a_backfill_in_the_order_of_arrival(lake: Lake) -> None:
    lake.append(("ann", at("00:10"), 1))
    lake.append(("ann", at("06:00"), 2))
    replayed = lake.project(session_pipeline()).replay("sessions", commits_per_epoch=1)
    assert [epoch.epoch for epoch in replayed.epochs] == [1, 2]


@pytest.mark.parametrize(
    ("value", "told"),
    [(timedelta(), "0:00:00"), (relativedelta(months=-1), "relativedelta"), ("1y", "'1y'")],
    ids=["zero", "negative", "text"],
)
def test_a_slice_that_is_no_length_is_a_usage_error(value: Any, told: str) -> None:
    with pytest.raises(UsageError, match="--slice") as raised:
        slice_of(value)
    assert told in str(raised.value) or value == timedelta()


def test_times_are_values_or_texts() -> None:
    midnight = datetime(2024, 3, 1, tzinfo=UTC)
    assert [moment_of(value, "start", UTC) for value in (DAY, datetime(2024, 3, 1), midnight, "2024-03-01")] == [
        midnight
    ] * 4
    assert length_of("5s", "interval") == length_of(timedelta(seconds=5), "interval") == timedelta(seconds=5)
    with pytest.raises(UsageError, match="interval"):
        length_of(timedelta(seconds=-1), "interval")
    assert slice_of(timedelta(days=1)) == relativedelta(days=1)
    assert slice_of("1mo") == relativedelta(months=1)


@pytest.mark.parametrize("value", [5, 1.5, (), timedelta])
def test_a_value_that_is_neither_a_time_nor_a_length_is_refused_by_the_name_of_its_argument(value: Any) -> None:
    for name, read in {
        "--window": lambda: moment_of(value, "--window", UTC),
        "--interval": lambda: length_of(value, "--interval"),
        "--slice": lambda: slice_of(value),
    }.items():
        with pytest.raises(UsageError, match=f"^{name} .*: give a "):
            read()


@pytest.mark.parametrize("zero", ["0", "0s", "0min", "0d", timedelta()])
def test_a_length_may_be_zero_only_where_zero_means_something(zero: Any) -> None:
    assert lengths_of([zero], "--bound", or_zero=True) == (0,)
    with pytest.raises(UsageError, match=r"--gap .*above zero"):
        lengths_of([zero], "--gap")


@pytest.mark.parametrize("length", [timedelta(microseconds=1500), "9" * 20 + "d", "1mo", "5", timedelta(-1)])
def test_a_length_is_a_whole_number_of_milliseconds_that_python_can_represent(length: Any) -> None:
    with pytest.raises(UsageError, match="--bound"):
        lengths_of([length], "--bound", or_zero=True)


KINDS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.string(), st.text() | st.from_regex(r"\\+(N|x([0-9a-f]{2})+)", fullmatch=True)),
    (pa.binary(), st.binary()),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.bool_(), st.booleans()),
    (pa.date32(), st.dates()),
    (pa.timestamp("us", tz="UTC"), st.datetimes(timezones=st.just(UTC))),
    (pa.timestamp("us"), st.datetimes()),
    (pa.decimal128(20, 3), st.decimals(-(10**15), 10**15, places=3, allow_nan=False).map(lambda d: d + Decimal(0))),
]


@given(st.data())
def test_a_key_of_values_is_the_key_of_their_texts(data: st.DataObject) -> None:
    """Including a text that the command line would take for a null or for bytes."""
    kinds = data.draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=3))
    values = tuple(data.draw(st.none() | values) for _, values in kinds)
    names = tuple(f"k{number}" for number in range(len(kinds)))
    schema = KeySchema(names, tuple(kind for kind, _ in kinds))
    assert tuple(part.as_py() for part in key_of_texts(schema, key_text(values) or ())) == values


@pytest.mark.parametrize("value", [b"", b"\0", b"\\x"])
def test_bytes_of_any_length_are_the_key_of_their_text(value: bytes) -> None:
    schema = KeySchema(("id",), (pa.binary(),))
    assert [part.as_py() for part in key_of_texts(schema, key_text((value,)) or ())] == [value]


def test_a_key_of_one_column_may_be_given_without_a_tuple_and_texts_stay() -> None:
    assert key_text("ann") == ("ann",)
    assert key_text(KeyText([r"\N"])) == (r"\N",)
    assert key_text(("\\N",)) == (r"\\N",)
    assert key_text(None) is None


def test_a_source_that_is_only_where_spark_reads_it_is_refused_with_the_remedy(lake: Lake) -> None:
    lake.append(("ann", at("00:10"), 1))
    derived = session_pipeline(columns={"total": "value", "user": "java_method('java.lang.String', 'valueOf', 1)"})
    with pytest.raises(Refused, match="--engine spark"):
        lake.project(derived).stream("sessions")


def test_quality_returns_the_outcome_and_raises_only_if_it_is_required(project: Project, lake: Lake) -> None:
    pytest.importorskip("great_expectations")
    project.stream("sessions", end_of_input=True)
    outcome = project.quality.check("sessions", partitions="day")
    assert outcome.success
    assert outcome.require() is outcome
    assert outcome.to_dict()["partitions"]["keys"]
    # Somebody else adds a row to the published results.
    again = project.results("sessions", view="all", limit=1).rows
    write_deltalake(lake.path("sessions/results"), again, mode="append")
    bad = project.quality.check("sessions", all=True)
    assert not bad.success
    with pytest.raises(TidegateError) as raised:
        bad.require()
    assert raised.value.exit_code == 5


class Counted(ProcessWindowFunction):
    result_type: ClassVar[pa.StructType] = pa.struct([("rows", pa.int64())])

    def process(self, key: Any, ctx: Any, elements: Any) -> Iterator[dict[str, int]]:
        yield {"rows": len(list(elements))}


def test_maps_by_date_nan_and_wide_sources_are_answered_in_json(lake: Lake) -> None:
    """Delta records statistics of the first 32 columns only, so a wide table late has none of column `epoch`."""
    pipeline = hourly_pipeline(compute=Windows(TumblingEventTimeWindows.of(timedelta(hours=1)), process=Counted()))
    wide = {f"c{number}": [number] * 4 for number in range(30)}
    for hours in ((10, 12, 14, 15), (10, 10, 11, 16)):
        nan = float("nan")
        rows = {"user": ["ann"] * 4, "at": [at(f"{hour}:05") for hour in hours], "price": [nan, nan, 1.5, nan], **wide}
        days = pa.array([[(DAY, nan)], [(DAY, nan)], [], None], pa.map_(pa.date32(), pa.float64()))
        lake.write(pa.table(rows).append_column("days", days))
        lake.project(pipeline).stream("hours")
    project = lake.project(pipeline)
    answers: list[Answer] = [
        project.trace("hours", ("ann",)),
        project.tables.lineage("hours", since="2020-01-01"),
    ]
    answers += [project.late.summary("hours", by=name) for name in ("price", "days")]
    trace, lineage, *late = [json.loads(json_text(each.to_dict()), parse_constant=pytest.fail) for each in answers]
    assert trace["elements"][0]["value"]["days"] == {"2024-03-01": "NaN"}
    # The first driver, whose epoch has no late rows.
    written = {each["table"]: each["outputFacets"]["outputStatistics"]["rowCount"] for each in lineage["outputs"]}
    assert (written["results"], written["late"]) == (2, 0)
    assert [[group["rows"] for group in each["groups"]] for each in late] == [[2, 1], [2, 1]]
