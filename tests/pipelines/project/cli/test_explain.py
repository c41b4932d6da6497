from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.hand_made import HandMade, column
from tests.lake import EVENTS, Lake, at, hourly_pipeline, session_pipeline
from tests.pipelines.project.cli.project import CORRECTING, SPARK_TOML, TOML, Project
from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.pipelines.ask.explain import explanation_of
from tidegate.pipelines.engine.spark import session
from tidegate.windowing import ContinuousEventTimeTrigger, CountTrigger, SlidingEventTimeWindows


@pytest.fixture
def project(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """The project on Spark, which never starts."""
    monkeypatch.setattr(session, "start_session", lambda *given: pytest.fail("Spark starts"))
    (project.folder / "tidegate.toml").write_text(SPARK_TOML)
    return project


DAY = ("--start", "2024-03-01", "--end", "2024-03-02")


def fed(project: Project, *tables: str) -> None:
    """Write the source, or other tables, with a row."""
    for table in tables or ("events",):
        Lake(project.folder).append(("ann", at("10:00"), 1), table=table)


def explained(project: Project, pipeline: str = "sessions") -> Any:
    """Return the JSON of an explanation, which ends with 3 if a source is missing."""
    code, told = project.tidegate("explain", pipeline, "--json")
    answer = json.loads(told)
    assert code == (3 if answer["missing_tables"] else 0), told
    return answer


def test_it_names_the_operator_the_reason_and_the_steps(project: Project) -> None:
    told = explained(project)
    assert told["engine"] == "spark"
    assert told["operator"] == {
        "name": "columnar",
        "reason": "EventTimeSessionWindows and every aggregate have array forms; sessions that a late element may join "
        "are computed row by row",
    }
    assert [step["where"] for step in told["steps"]][:2] == ["driver", "Python task"]
    assert any("columns value" in step["does"] for step in told["steps"])


def test_a_source_whose_changes_are_corrected_has_steps_more_which_say_how_changed_rows_are_told(
    project: Project,
) -> None:
    fed(project)
    steps = [step["does"] for step in explained(project)["steps"]]
    assert not any(words in step for step in steps for words in ("change feed", "changed rows"))
    project.rewrite(CORRECTING)
    steps = explained(project)["steps"]
    assert [step["where"] for step in steps if "change feed" in step["does"]] == ["driver"]
    assert "if versions of events changed rows" in steps[1]["does"]


@pytest.mark.parametrize(
    ("features", "kind", "where", "told"),
    [
        ([], "long", "Python task", "read the files of events"),
        (["deletionVectors", "columnMapping", "variantType"], "long", "Python task", "read the files of events"),
        (["deletionVectors", "variantType"], "variant", "Spark", "the table has variantType"),
    ],
    ids=["plain", "features that Arrow reads or no column has", "another feature"],
)
def test_it_says_who_reads_the_source_as_it_is(
    project: Project, features: list[str], kind: str, where: str, told: str
) -> None:
    columns = [column("user", "string"), column("at", "timestamp"), column("value", "long"), column("variant", kind)]
    HandMade(project.folder / "warehouse" / "events", columns, ["user"], features)
    step = explained(project)["steps"][1]
    assert (step["where"], told in step["does"]) == (where, True), step
    assert "does not exist" not in step["does"]


SQL = "columns={'double': 'value * 2', 'kind': %r}, where='double > 10'"


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (
            "upper(user)",
            [
                ("Python task", "columns['double'] = value * 2: as Arrow compute, proven equal to Spark"),
                ("Python task", "columns['kind'] = upper(user): as Arrow compute, proven equal to Spark"),
                ("Python task", "where = double > 10: as Arrow compute, proven equal to Spark"),
            ],
        ),
        (
            "soundex(user)",
            [
                ("Spark", "columns['double'] = value * 2: the input's rows pass through it anyway"),
                ("Spark", "columns['kind'] = soundex(user): the function soundex is not proven"),
                ("Spark", "where = double > 10: the input's rows pass through it anyway"),
            ],
        ),
    ],
)
def test_it_says_for_each_expression_who_evaluates_it_and_why(
    project: Project, kind: str, expected: list[tuple[str, str]]
) -> None:
    fed(project)
    project.rewrite(f"session_pipeline({SQL % kind})")
    told = explained(project)["steps"]
    assert [
        (step["where"], step["does"]) for step in told if step["does"].startswith(("columns[", "where ="))
    ] == expected
    # The tasks read the files, whatever evaluates the SQL.
    assert told[1]["where"] == "Python task"


def test_a_second_pipeline_over_the_panes_of_the_first_is_told_of_the_copy(project: Project) -> None:
    project.by_hand.epoch(("ann", at("10:00"), 1), watermark=at("12:00"))
    assert explained(project)["tables_of_panes"] == []
    source = "DeltaSource('sessions/results', timestamp='window_start')"
    project.rewrite(f"session_pipeline(name='second', source={source}, columns={{'value': 'total'}})")
    toml = project.folder / "tidegate.toml"
    toml.write_text(toml.read_text().replace("[pipelines.sessions]", "[pipelines.second]"))
    project.says(0, "source sessions/results has a row for each pane of a window", "explain", "second")
    assert explained(project, "second")["tables_of_panes"] == ["sessions/results"]


@pytest.mark.parametrize(
    "command",
    [("explain", "sessions"), ("plan", "sessions", "--start", "2024-03-01", "--end", "2024-03-02")],
    ids=["explain", "dry run"],
)
def test_a_correction_that_spark_would_have_to_help_with_is_refused_before_it_starts(
    project: Project, command: tuple[str, ...]
) -> None:
    fed(project)
    project.rewrite(f"{CORRECTING[:-1]}, columns={{'part': 'round(cast(value as float), 1)'}})")
    project.says(3, "can't correct changes of source events: columns['part']", *command)


@pytest.mark.parametrize("changing", ["rand()", "now()", "uuid()", "current_date"])
@pytest.mark.parametrize("more", ["", ", source=DeltaSource('events', timestamp='at', reader='spark')"])
def test_a_value_that_changes_between_runs_is_refused_before_spark_starts(
    project: Project, changing: str, more: str
) -> None:
    fed(project)
    project.rewrite(f"session_pipeline(columns={{'drawn': '{changing}'}}{more})")
    code, told = project.tidegate("explain", "sessions")
    assert (code, "columns['drawn'] of pipeline 'sessions'" in told, "a different value each time" in told) == (
        3,
        True,
        True,
    ), told


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ("where='valeu > 3'", "where of pipeline 'sessions': 'valeu > 3' names a missing column 'valeu'; did"),
        ("where='soundex(usr) = 1'", "names a missing column 'usr'; did you mean 'user'? It has ['user', 'at',"),
        ("where='(value > 3'", "at line 1, column 10, marked in '(value > >>>3<<<': expecting )"),
        ("where='value >'", "at line 1, column 7, marked in 'value >>>><<<': something is missing after '>'"),
        (r"where='value > 1 or\n  (at is null))'", "at line 2, column 15, marked in '(at is null)>>>)<<<': ')' is not"),
        ('where="user = \'ann"', "at line 1, column 8, marked in \"user = >>>'<<<ann\": the ' is not closed"),
        ("columns={'a': 'value + cast(at as )'}", "marked in 'value + cast(at as >>>)<<<': expected TYPE after CAST"),
        ("columns={'more': 'valeu + 1'}", "columns['more'] of pipeline 'sessions': 'valeu + 1' names a missing"),
        ("columns={'a': 'b + 1', 'b': 'value'}", "columns['a'] of pipeline 'sessions': 'b + 1' names a missing column"),
        ("where='soundx(user) = 1'", "calls the function 'soundx', which Spark does not have; did you mean 'soundex'?"),
        ("columns={'a': 'upper(nosuch_thing(user))'}", "calls the function 'nosuch_thing', which Spark does not have"),
        ("where='value + 1'", "'value + 1' has a condition of type bigint, but a condition must be boolean"),
        ("where='value and at is null'", "has a condition of type bigint"),
        ("where='at > 5'", "compares timestamp with int: give a time, such as timestamp '2024-03-01'"),
        ("columns={'a': '(value > 3) + 1'}", "does arithmetic with a boolean"),
        ("key=('usr',)", "no column 'usr'; did you mean 'user'? It has ['user', 'at',"),
        ("key=('usr',), where='value > 0'", "no column 'usr'; did you mean 'user'? It has"),
    ],
    ids=str,
)
def test_an_expression_that_no_run_can_evaluate_is_refused(
    project: Project, options: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A session of other tests may know functions of its own.
    monkeypatch.setattr("tidegate.pipelines.engine.spark.jvm.is_running", lambda: False)
    fed(project)
    project.rewrite(f"session_pipeline({options})")
    code, told = project.tidegate("explain", "sessions")
    assert (code, fault in " ".join(told.split())) == (3, True), told


@pytest.mark.parametrize(
    "where",
    [
        "soundex(USER) = 'x' and more > 1",
        "exists(array(1, value), x -> x > 1)",
        "timestampadd(MONTH, 1, at) > at and extract(year from at) > 2000",
        "try_cast(user as int) = 1",
        "order > 3",
        "current_user = 'ann'",
        "mask(user, lowerChar => 'q') = 'q'",
        "map(value) is null",
    ],
)
def test_an_expression_that_only_spark_knows_is_left_to_it(project: Project, where: str) -> None:
    columns = [column("user", "string"), column("at", "timestamp"), column("value", "long"), column("order", "long")]
    HandMade(project.folder / "warehouse" / "events", columns)
    project.rewrite(f"session_pipeline(columns={{'more': 'value'}}, where={where!r})")
    assert project.tidegate("explain", "sessions")[0] == 0


def test_expressions_stand_between_the_reading_of_their_own_source_and_the_shards(project: Project) -> None:
    fed(project, "events", "payments")
    right = "Input(source=DeltaSource('payments', timestamp='at'), where='value > 2')"
    project.rewrite(f"session_pipeline(where='value > 1', right={right}, compute=IntervalJoin.between(-5, 5))")
    steps = [step["does"].split(":")[0] for step in explained(project)["steps"]]
    assert steps[1:5] == [
        "read the files of events",
        "where = value > 1",
        "read the files of payments",
        "right.where = value > 2",
    ]
    assert steps[5].startswith("if there are few rows, every shard reads them")


def test_a_window_join_says_when_it_joins(project: Project) -> None:
    join = "WindowJoin(TumblingEventTimeWindows.of(3_600_000), 'anti')"
    project.rewrite(f"session_pipeline(right=Input(source=DeltaSource('payments', timestamp='at')), compute={join})")
    answer = explained(project)
    steps = [step["does"] for step in answer["steps"]]
    assert "when the watermark reaches the end of a window, emit its anti join and remove the window" in steps
    assert "except for late rows" in str(answer)


def test_a_source_that_is_not_there_is_said_first(project: Project) -> None:
    missing = str(project.folder / "warehouse" / "events")
    assert explained(project)["missing_tables"] == [missing]
    told = " ".join(project.tidegate("explain", "sessions")[1].split())
    assert "sessions uses the columnar operator" in told
    assert told.startswith(f"no column could be checked: source table {missing} does not exist: create it")
    assert told.endswith(f"tidegate: sessions: no source table at {missing}, so no run can begin")

    fed(project)
    assert explained(project)["missing_tables"] == []
    assert "does not exist" not in project.tidegate("explain", "sessions")[1]


def test_an_explanation_for_this_machine_speaks_of_no_exchange_by_spark(project: Project) -> None:
    (project.folder / "tidegate.toml").write_text(TOML)
    asked = explained(project)["steps"]
    assert any(
        "a run is refused if it uses a feature or type of Delta that only Spark" in step["does"] for step in asked
    )
    fed(project)
    told = explained(project)
    assert told["engine"] == "local"
    assert not any("Spark" in step["does"] or step["where"] == "Spark" for step in told["steps"])
    assert any("leaves the packs in the work folder" in step["does"] for step in told["steps"])
    _, text = project.tidegate("explain", "sessions")
    assert text.index("engine: local") < text.index("catchup = true"), "what is explained comes first"


@pytest.mark.parametrize("command", [("explain",), ("plan", *DAY), ("backfill", *DAY)], ids=" ".join)
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("where='soundex(user) = 1'", "with engine = \"local\": where = 'soundex(user) = 1' is evaluated by Spark"),
        ("where='(value > 3'", "can't be parsed as an expression of Spark SQL at line 1, column 10"),
    ],
)
def test_what_this_machine_can_not_evaluate_is_refused_in_one_way(
    project: Project, options: str, told: str, command: tuple[str, ...]
) -> None:
    (project.folder / "tidegate.toml").write_text(TOML)
    fed(project)
    project.rewrite(f"session_pipeline({options})")
    project.says(3, told, command[0], "sessions", *command[1:])


def test_a_trigger_without_an_array_form_is_named_as_the_reason() -> None:
    pipeline = hourly_pipeline()
    counted = replace(pipeline, compute=replace(pipeline.compute, trigger=CountTrigger.of(3)))
    explanation = explanation_of(counted)
    assert explanation.operator.name == "row"
    assert explanation.operator.reason == "trigger CountTrigger(max_count=3) has no array form"
    assert "CountTrigger" in explanation.order


def steps(pipeline: Pipeline, where: str) -> list[str]:
    """Return the texts of a pipeline's steps at one place."""
    return [step.does for step in explanation_of(pipeline).steps if step.where == where]


def test_the_steps_of_aligned_windows_over_files_that_the_tasks_read() -> None:
    assert steps(hourly_pipeline(parallelism=4), "Python task") == [
        (
            "read the files of events: key user, time at, columns value; the table does not exist yet: "
            "Spark will read it if it uses a feature or type of Delta that only Spark reads"
        ),
        "combine the rows of a key, window and commit, except rows that may be late",
        (
            "if there are few rows, every shard reads them (on one machine, only once) and keeps those of its "
            "key group, pmod(xxhash64(key), 128); otherwise the reading task packs them by it, and Spark moves the "
            "packs: 4 shards, or more if a shard would exceed 2,500,000 rows or 768 MiB"
        ),
        "fetch all columns of late rows from their file",
        "set aside rows with an unusable time or a null key (table rejects)",
        "read the state rows of the shard's key groups",
        "sort by key and window; one group per pane: on time, or late by its commit",
        "reduce each group: events, total; merge the groups of a window in order",
        "write Parquet files of results, late and state; of state only if the shard changed",
    ]
    assert steps(hourly_pipeline(), "Spark") == []


def test_the_steps_of_a_source_that_spark_reads_say_why_it_does() -> None:
    source = DeltaSource("events", timestamp="at", reader="spark")
    pipeline = hourly_pipeline(where="value > 3", null_keys="keep", source=source)
    assert steps(pipeline, "Spark") == [
        "scan events: key user, time at, columns value, where value > 3 (the source says reader='spark')",
        "keep all columns of rows that may be late",
    ]
    assert steps(pipeline, "Python task")[:4] == [
        "combine the rows of a key, window and commit, except rows that may be late",
        (
            "pack the rows by key group, pmod(xxhash64(key), 128); Spark moves the packs: one shard a core, or more "
            "if a shard would exceed 2,500,000 rows or 768 MiB"
        ),
        "set aside rows with an unusable time (table rejects)",
        "read the state rows of the shard's key groups",
    ]


def test_windows_that_fire_early_are_said_to_go_by_row_in_event_order() -> None:
    pipeline = hourly_pipeline()
    early = replace(pipeline, compute=replace(pipeline.compute, trigger=ContinuousEventTimeTrigger(60_000)))
    operator = explanation_of(early).operator
    assert operator.name == "columnar"
    assert "a backfill in event order is computed row by row" in operator.reason
    assert steps(early, "Python task")[-4:-1] == [
        "sort by key and window; one group per commit, on time or late",
        "reduce each group: events, total; merge the groups of a window in order, up to each firing",
        "in a backfill in event order: take each element through assigner, trigger and contents, then due timers",
    ]


def test_sliding_windows_say_if_they_share_slices() -> None:
    pipeline = hourly_pipeline()
    day = SlidingEventTimeWindows.of(timedelta(days=1), timedelta(minutes=1))
    sliding = replace(pipeline, compute=replace(pipeline.compute, assigner=day))
    assert explanation_of(sliding).operator.reason.endswith(
        "; an element is kept once, in a slice of 1 min, and a window that fires merges its 1440 slices"
    )
    assert steps(sliding, "Python task")[-3:-1] == [
        "sort by key and slice; reduce each group: events, total",
        "merge the slices of each window that fires; windows share the merges",
    ]
    late = replace(sliding, compute=replace(sliding.compute, allowed_lateness=timedelta(minutes=1)))
    assert explanation_of(late).operator.reason.endswith(
        "; windows overlap without sharing slices, so an element is kept in each of its windows: late elements within "
        "the allowed lateness fire a window again"
    )
    assert "sort by key and window" in steps(late, "Python task")[-3]


@pytest.mark.parametrize("make", [session_pipeline, hourly_pipeline])
def test_windows_that_only_the_set_of_elements_decides_are_told_so(make: object) -> None:
    assert explanation_of(make()).order.startswith("the result depends on the set of a window's elements")  # type: ignore[operator]


def test_it_says_if_no_file_can_be_skipped_and_what_to_do(project: Project) -> None:
    fed(project)
    assert not {note["kind"] for note in explained(project)["notes"]} & {"derived_time", "no_statistics"}
    project.rewrite(
        "session_pipeline(source=DeltaSource('events', timestamp='t'), columns={'t': 'coalesce(at,\\n  at)'})"
    )
    told = explained(project)
    (note,) = (note for note in told["notes"] if note["kind"] == "derived_time")
    assert (note["source"], note["timestamp"]) == ("events", "t")
    words = " ".join(project.tidegate("explain", "sessions")[1].split())
    assert "each slice of a backfill, and each reopening, reads every file of events: event time t is" in words
    assert "Store the time in a column of the table" in words
    assert "columns['t'] = coalesce(at, at)" in told["steps"][2]["does"], (
        "an expression of several lines is shown in one"
    )
    project.rewrite("session_pipeline()")
    write_deltalake(
        project.folder / "warehouse" / "events",
        pa.table({"user": ["ann"], "at": [at("10:00")], "value": [1]}, schema=EVENTS),
        mode="append",
        configuration={"delta.dataSkippingNumIndexedCols": "0"},
    )
    DeltaTable(project.folder / "warehouse" / "events").alter.set_table_properties(
        {"delta.dataSkippingNumIndexedCols": "0"}
    )
    fed(project)
    (note,) = (note for note in explained(project)["notes"] if note["kind"] == "no_statistics")
    assert (note["without"], note["files"]) == (3, 3)
    words = " ".join(project.tidegate("explain", "sessions")[1].split())
    assert "reads 3 of the 3 files of events" in words
    assert "dataSkippingStatsColumns" in words


def test_a_backfill_that_catches_up_beside_a_stream_is_noted_before_the_stream_takes_over(project: Project) -> None:
    assert [note["kind"] for note in explained(project)["notes"]] == ["catchup"]
    words = " ".join(project.tidegate("explain", "sessions")[1].split())
    assert "from the first run of sessions__stream on, each later backfill run is refused (exit code 3)" in words
    assert "catchup = true lets Airflow backfill" in words
    toml = project.folder / "tidegate.toml"
    toml.write_text(f"{toml.read_text()}catchup = false\n")
    assert explained(project)["notes"] == []


def test_it_says_which_of_backfill_and_stream_drives_and_how_to_change_over(project: Project) -> None:
    toml = project.folder / "tidegate.toml"
    toml.write_text(f"{TOML}catchup = false\n")
    Lake(project.folder).append(("ann", at("10:00"), 1), ("bob", at("12:00", day=1), 1))
    project.data("backfill", "sessions", "--start", "2024-03-01", "--end", "2024-03-02")
    (note,) = project.data("explain", "sessions")["notes"]
    assert (note["kind"], note["epoch"]) == ("backfill_has_run", 1)
    words = " ".join(project.tidegate("explain", "sessions")[1].split())
    assert "a backfill has run, up to epoch 1." in words
    assert "pause sessions__backfill before you unpause sessions__stream" in words
    project.data("stream", "sessions", "--available-now")
    (note,) = project.data("explain", "sessions")["notes"]
    assert note["kind"] == "stream_has_taken_over"
    assert "tidegate restore sessions 1" in {way.get("command") for way in note["remedies"]}
    words = " ".join(project.tidegate("explain", "sessions")[1].split())
    assert "a stream has taken over, at epoch" in words
    refused = project.tidegate("backfill", "sessions", "--start", "2024-03-02", "--end", "2024-03-03")
    assert refused[0] == 3
    assert "a stream has taken over at epoch" in " ".join(refused[1].split())
    for told in (words, " ".join(refused[1].split())):
        assert "the DAG sessions__backfill" in told or "pause sessions__backfill" in told
        assert "`tidegate restore sessions 1`" in told
    project.data("restore", "sessions", "1")
    assert project.data("explain", "sessions")["notes"][0]["kind"] == "backfill_has_run"
    project.data("backfill", "sessions", "--start", "2024-03-02", "--end", "2024-03-03")


def test_a_column_of_microseconds_is_made_a_time_as_the_message_says(project: Project) -> None:
    rows = pa.table({"user": ["ann"], "micros": [1_709_287_200_000_000], "value": [1]})
    write_deltalake(project.folder / "warehouse" / "events", rows)
    project.rewrite("session_pipeline(source=DeltaSource('events', timestamp='micros', unit='us'))")
    project.says(2, "columns={'at': 'timestamp_micros(COLUMN)'}", "explain", "sessions")
    derived = "columns={'at': 'timestamp_micros(micros)'}"
    project.rewrite(f"session_pipeline(source=DeltaSource('events', timestamp='at'), {derived})")
    assert project.tidegate("explain", "sessions")[0] == 0


def test_of_many_columns_a_message_lists_the_first(project: Project) -> None:
    rows = pa.table({**{f"c{number:02}": [1] for number in range(49)}, "usr": ["ann"], "at": [at("10:00")]})
    write_deltalake(project.folder / "warehouse" / "events", rows)
    told = project.tidegate("explain", "sessions")[1]
    assert "'c10', 'c11' and 39 more" in " ".join(told.split())
