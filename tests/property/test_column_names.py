"""Columns of a source may have any names: reading, late and rejected rows, reopening and checks are unaffected. The
rule of `definition.column_names`: whatever users call their columns, no two columns of one of our tables have the same
name. Our own names never show: whatever columns, keys and results are called, the tables and all output are those of a
pipeline with plain names. A name may be refused before anything is written. Files of a source may have any names and
share base names: each keeps its own commit.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.expectations.broken import broken_by_rules
from tests.lake import DAY0, EVENTS, LOCAL, Lake, at, hourly_pipeline
from tests.named_files import add_file
from tests.pipelines.counting import HOURS, counting
from tests.pipelines.sources.slices import files_over
from tests.property.named_lives import KINDS, SHAPES, Made, Names, short_life, whole_life
from tidegate.expectations.pinned import pin
from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.pipelines.definition import epochs, late, rejects, results, state
from tidegate.pipelines.definition.binding import BoundPipeline, bind
from tidegate.pipelines.definition.column_names import free_name, input_fields, input_rows
from tidegate.pipelines.epoch.file_measure import measure_files
from tidegate.pipelines.epoch.plan_commits import ReadCommit, of_commits
from tidegate.pipelines.errors import Refused, TidegateError
from tidegate.pipelines.sources.commits import SourceFile
from tidegate.pipelines.sources.delta.log import SourceLog
from tidegate.pipelines.sources.parquet_reader import SourceParquet
from tidegate.pipelines.storage.warehouse import Warehouse
from tidegate.windowing import (
    Count,
    First,
    KeyedProcess,
    KeyedProcessFunction,
    Max,
    Sum,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    Windows,
)
from tidegate.windowing.compute import Compute
from tidegate.windowing.errors import IllegalArgument

PLAIN = ("user", "at", "value", "other")
WORDS = ("user", "User", "at", "value", "a.b", "a", "b", "reason", "Epoch", "watermark", "input_reason", "side", "op")
"""Names that are paths of others, that differ from ours in case, and that tables late and rejects rename."""
TEXT = st.text(st.sampled_from("aZé日ß.`[]'\"%$-+#@:/\\\u0301\U0001f600 1"), min_size=1, max_size=6)
NAMES = st.lists(st.one_of(TEXT, st.sampled_from(WORDS)), min_size=4, max_size=4, unique_by=str.casefold)

DOTTED = ["key", "a.b", "value", "a"]
"""The timestamp is named like the path of a field."""


def lived(folder: Path, names: tuple[str, ...] | list[str]) -> list[Any]:
    """Tables that a backfill and a stream create from the same rows, whose columns have these names."""
    user, time, value, other = names
    inner = pa.struct([("b", pa.timestamp("us", tz="UTC")), ("x.y", pa.string())])
    schema = pa.schema([(other, inner), (user, pa.string()), (time, pa.timestamp("us", tz="UTC")), (value, pa.int64())])

    def rows(*events: tuple[str | None, datetime | None, int]) -> pa.Table:
        values = [dict(zip(names, (*event, {"b": at("01:00", 400), "x.y": event[0]}), strict=True)) for event in events]
        return pa.Table.from_pylist(values, schema=schema)

    def pipeline(name: str) -> Pipeline:
        aggregate = {"n_": Count(), "total_": Sum(value), "first_": First(value), "others_": Count(other)}
        return Pipeline(
            name=name,
            source=DeltaSource("events", timestamp=time),
            key=(user,),
            watermark=WatermarkStrategy.for_monotonous_timestamps(),
            watermark_by=user,
            compute=Windows(TumblingEventTimeWindows.of(3_600_000), aggregate=aggregate),
        )

    lake, spark = Lake(folder), LOCAL
    lake.write(rows(("ann", at("01:00"), 1), ("bob", at("01:10"), 2), ("ann", at("02:10"), 3), ("bob", at("02:20"), 4)))
    lake.backfill(spark, pipeline("batch"), DAY0, at("02:00"))
    lake.stream(spark, pipeline("stream"))
    lake.write(rows(("ann", at("01:30"), 5), (None, at("02:30"), 6), ("bob", None, 7)))
    lake.stream(spark, pipeline("stream"))
    tables = lake.tables(pipeline("stream"))
    shown = [user, "window_start", "n_", "total_", "first_", "others_"]
    panes = [lake.latest(pipeline(name)).select(shown).to_pylist() for name in ("batch", "stream")]
    made: list[Any] = [sorted(tuple(row.values()) for row in part) for part in panes]
    for table, trailing in ((late.NAME, late.TRAILING), (rejects.NAME, rejects.TRAILING)):
        kept = input_rows(lake.rows(pipeline("stream"), table), trailing, schema, {})
        made.append(sorted(tuple(map(str, row.values())) for row in kept.select(names).to_pylist()))
    made.append(broken_by_rules(pin(tables, pipeline("stream"))))
    return made


@cache
def with_plain_names() -> list[Any]:
    with tempfile.TemporaryDirectory() as folder:
        made = lived(Path(folder), PLAIN)
    assert [len(part) for part in made] == [2, 2, 1, 2, 0]
    return made


def agree(names: list[str]) -> None:
    """Compare the result of rows with that of the same rows with plain names; a key may be refused for its name."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            made = lived(Path(folder), names)
        except IllegalArgument as refused:
            if refused.field == "key" and "rename it in columns=" in str(refused):
                return
            raise
        assert made == with_plain_names()


NAMED_AS_OURS = ["reason", "user", "epoch", "stale"]
"""The key is named like a column of tables `late` and `rejects`."""

BLANK = [" ", "111", "1", "11"]


@pytest.mark.first(2)
@pytest.mark.parametrize("names", [DOTTED, NAMED_AS_OURS, BLANK], ids=" ".join)
def test_no_name_shows(names: list[str]) -> None:
    agree(names)


@pytest.mark.long
@settings(max_examples=80)
@given(NAMES)
def test_no_name_shows_of_many(names: list[str]) -> None:
    agree(names)


def test_columns_that_are_told_by_their_paths_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A seeded bug: statistics are those of the first column with a path of that name."""

    def by_path(file: SourceParquet, group: int, name: str) -> list[tuple[int, int]] | None:
        metadata = file._file.metadata.row_group(group)
        columns = [metadata.column(number) for number in range(metadata.num_columns)]
        bounds = [column.statistics for column in columns if column.path_in_schema == name][:1]
        return [(int(bound.min_raw), int(bound.max_raw)) for bound in bounds] or None

    monkeypatch.setattr(SourceParquet, "bounds_of_times", by_path)
    # If the wrong statistics prove a count, the tasks' own count differs, and the epoch is refused.
    with pytest.raises((AssertionError, TidegateError)):
        agree(DOTTED)


TIME = pa.timestamp("us", tz="UTC")


class Yields(KeyedProcessFunction):
    """Yields one column of any name."""

    def __init__(self, name: str) -> None:
        self.result_type = pa.struct([(name, pa.int64())])

    def process_element(self, value: object, ctx: object) -> list[object]:
        return []


COMPUTES: dict[str, Callable[[str], Compute]] = {
    "windows": lambda name: Windows(HOURS, aggregate={name: Max("value"), "n": Count()}),
    "function": lambda name: KeyedProcess(Yields(name)),
}


def bound(kind: str, key: str, name: str, *others: str) -> BoundPipeline:
    """A pipeline with a key, a result, and a source of these columns."""
    source = pa.schema([(key, pa.string()), ("at", TIME), ("value", pa.int64()), *((o, pa.int64()) for o in others)])
    return bind(counting(key=(key,), compute=COMPUTES[kind](name)), source, source)


OURS = {column.name for part in (results.LEADING, results.ELEMENT_LEADING, late.TRAILING) for column in part}
OURS |= {*epochs.SCHEMA.names, *rejects.schema(pa.schema([])).names}
OURS |= {
    *state.schema(bound("windows", "user", "total").state).names,
    *state.schema(bound("function", "u", "t").state).names,
}
POOL = sorted({*OURS, *(f"input_{name}" for name in OURS), "acc_n", "n", "tidegate:time", "user", "total"})
NAME = st.builds(lambda name, spelled: spelled(name), st.sampled_from(POOL), st.sampled_from([str, str, str.upper]))


def check_no_two_meet(kind: str, key: str, name: str, others: list[str]) -> None:
    """Bind a pipeline: either its names are refused, or each table has each name once."""
    taken = {key.casefold(), "at", "value"}
    try:
        schemas = bound(kind, key, name, *(other for other in others if other.casefold() not in taken)).table_schemas
    except (IllegalArgument, Refused):
        return
    for table, schema in schemas.items():
        assert len({column.casefold() for column in schema.names}) == len(schema), (table, schema.names)


@given(st.sampled_from(sorted(COMPUTES)), NAME, NAME, st.lists(NAME, max_size=4, unique_by=str.casefold))
def test_names_meet_in_no_table(kind: str, key: str, name: str, others: list[str]) -> None:
    check_no_two_meet(kind, key, name, others)


@pytest.mark.first(1)
@pytest.mark.parametrize("kind", sorted(COMPUTES))
def test_every_name_of_ours_is_refused_or_kept_apart(kind: str) -> None:
    for name in POOL:
        for spelled in (name, name.upper()):
            check_no_two_meet(kind, spelled, "total", ["other"])
            check_no_two_meet(kind, "user", spelled, ["other"])
            check_no_two_meet(kind, "user", "total", [spelled])


def test_without_the_check_they_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: names of results are not checked."""
    monkeypatch.setattr("tidegate.pipelines.definition.binding.check_names", lambda *ignored, **named: None)
    with pytest.raises(AssertionError, match="results"):
        check_no_two_meet("windows", "user", "Epoch", [])


@given(st.lists(NAME, max_size=6, unique_by=str.casefold), NAME)
def test_earlier_columns_of_a_source_keep_their_names_when_one_is_added(names: list[str], added: str) -> None:
    fields = [pa.field(name, pa.int64()) for name in names]
    before = input_fields(late.TRAILING, pa.schema(fields))
    after = input_fields(late.TRAILING, pa.schema([*fields, pa.field(added, pa.int64())]))
    assert after[: len(before)] == before


@given(NAME, st.sets(NAME))
def test_a_free_name_is_free(name: str, taken: set[str]) -> None:
    folded = {each.casefold() for each in taken}
    assert free_name(name, folded, "{}_".format).casefold() not in folded
    assert free_name(name, set(), "{}_".format) == name


OF_TABLES = [field.name for part in (results.LEADING, results.ELEMENT_LEADING, late.TRAILING) for field in part]
OF_STATE = ["key_group", "namespace", "side", "state_window_start", "in_flight", "event_time_timers", "filled"]
OF_STATE += ["missing", "late_firing", "emitted", "trigger_state", "user_state", "unseen_elements", "manifest"]
OF_STATE += ["held", "held_value", "acc", "acc_n", "rest_acc_n", "elements", "reduced"]
OF_PLANS = ["key_user", "value_gap", "__start", "__end", "__number", "__slot", "__until", "commit", "timestamp", "row"]
OF_PLANS += [
    "__time",
    "__status",
    "__commit",
    "__row",
    "__file",
    "__place",
    "__kept",
    "__partition",
    "__path",
    "__side",
]
OF_QUERIES = [
    "tidegate_newest",
    "tidegate_watermark",
    "tidegate.window_id",
    "tidegate_watermarks",
    "panes",
    "times",
    "results",
    "all",
]
OF_COMMANDS = ["rows", "open", "windows", "median", "largest", "first epoch", "last epoch", "_merge", "index", "value"]
OF_INPUTS = ["input_reason", "input_epoch", "input_reopened", "_change_type", "_commit_version", "_metadata", "a.b"]
OUR_NAMES = sorted({*OF_TABLES, *epochs.SCHEMA.names, *OF_STATE, *OF_PLANS, *OF_QUERIES, *OF_COMMANDS, *OF_INPUTS})

SPELLED = st.sampled_from([str, str, str, str.upper, str.title])
OUR_NAME = st.builds(lambda name, spelled: spelled(name), st.sampled_from(OUR_NAMES), SPELLED)
DRAWN = st.lists(OUR_NAME, min_size=8, max_size=8, unique_by=str.casefold).map(lambda names: Names(*names))

TELLING = {
    "hours": Names("emitted", "stale", "reason", "window_end", "emitted_at", "pane_", "tidegate_newest", "reopened"),
    "sessions": Names("value_gap", "timing", "final_at", "gap", "lateness_ms", "event_time", "output", "key_group"),
    "sliding": Names("__slot", "pane", "op", "epoch", "reopened", "rows", "held", "all"),
    "function": Names("op", "epoch", "reopened", "window_start", "watermark", "pane", "window_end", "key_group"),
}
"""Names that were mistaken for ours, by the shape of the pipeline."""


def made(life: Callable[[Path, Names, str, str], Made], names: Names, kind: str, shape: str) -> Made:
    """Return the result of a life. A role whose name is refused gets its plain name."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return life(Path(folder), names, kind, shape)
        except IllegalArgument as refused:
            assert not Path(folder, "warehouse", "named", "state").exists(), "nothing was written"
            others = without_refused(names, refused)
    return made(life, others, kind, shape)


def without_refused(names: Names, refused: IllegalArgument) -> Names:
    """Return the names, with the refused one replaced by its plain name."""
    roles = ["key"] if refused.field == "key" else ["count", "total", "one"]
    (role,) = [role for role in roles if f"= {getattr(names, role)!r}:" in str(refused)]
    assert getattr(names, role) != getattr(Names(), role), refused
    return replace(names, **{role: getattr(Names(), role)})


@cache
def plain(life: Callable[[Path, Names, str, str], Made], kind: str, shape: str) -> Made:
    return made(life, Names(), kind, shape)


def lives_agree(life: Callable[[Path, Names, str, str], Made], names: Names, kind: str, shape: str) -> None:
    for expected, actual in zip(plain(life, kind, shape), made(life, names, kind, shape), strict=True):
        assert actual == expected


@pytest.mark.first(1)
@pytest.mark.parametrize("shape", ["hours", "function"])
def test_names_that_were_taken_for_ours_are_not(shape: str) -> None:
    lives_agree(short_life, TELLING[shape], "boolean" if shape == "hours" else "string", shape)


@pytest.mark.long
@pytest.mark.parametrize("shape", SHAPES)
def test_names_that_were_taken_for_ours_are_not_in_a_whole_life(shape: str) -> None:
    lives_agree(whole_life, TELLING[shape], "string", shape)


@pytest.mark.long
@pytest.mark.timeout(3600)
@settings(max_examples=12, phases=[Phase.generate])
@given(DRAWN, st.sampled_from(sorted(KINDS)), st.sampled_from(SHAPES))
def test_no_name_of_ours_shows(names: Names, kind: str, shape: str) -> None:
    lives_agree(whole_life, names, kind, shape)


FILE_NAMES = st.lists(
    st.tuples(
        st.sampled_from(["", "d=1/", "d=2 x/", "a b/c%/", "ü/"]),
        st.text(st.sampled_from("ab %+üß日=&#?'()~,;@!"), min_size=1, max_size=6),
    ).map(lambda parts: f"{parts[0]}p{parts[1]}"),
    min_size=1,
    max_size=5,
    unique=True,
)


def placed(
    names: Sequence[str],
    spelled: Callable[[SourceFile], SourceFile] = lambda file: file,
    brought: Callable[[Path], Warehouse] = lambda folder: Warehouse(str(folder)),
) -> None:
    """Count the row of each file of a table with its own commit.

    Args:
        names: names of the files, one per commit.
        spelled: a seeded bug in how files are distinguished.
        brought: copies the folder of the table to where it is read.
    """
    with tempfile.TemporaryDirectory() as folder:
        table = f"{folder}/events"
        for number, name in enumerate(names):
            add_file(table, pa.Table.from_pylist([{"user": "u", "at": at("01:00"), "value": number}], EVENTS), name)
        warehouse = brought(Path(folder))
        log = SourceLog(warehouse, warehouse.path("events"))
        commits = [
            ReadCommit(replace(commit, time=number), tuple(map(spelled, commit.files)), 1, True, step=number)
            for number, commit in enumerate(log.unread(-1))
        ]
        files = of_commits(files_over(log, hourly_pipeline()), commits)
        assert measure_files(files).rows == dict.fromkeys(range(len(names)), 1)
        assert {file.path for file in log.active("at")} == set(names)
        assert log.versions_of(log.active("at"), log.head) == {name: n + 1 for n, name in enumerate(names)}


@given(FILE_NAMES)
def test_every_file_is_of_its_own_commit(names: list[str]) -> None:
    placed(names)


def by_base_name(file: SourceFile) -> SourceFile:
    return replace(file, path=file.path.rsplit("/", 1)[-1])


def as_the_log_spells_it(file: SourceFile) -> SourceFile:
    return replace(file, path=quote(file.path))


@pytest.mark.parametrize("bug", [by_base_name, as_the_log_spells_it])
def test_the_draws_find_files_that_are_told_apart_otherwise(bug: Callable[[SourceFile], SourceFile]) -> None:
    @settings(database=None, phases=[Phase.generate], max_examples=60)
    @given(FILE_NAMES)
    def drawn(names: list[str]) -> None:
        placed(names, bug)

    with pytest.raises(Refused, match="is missing"):
        drawn()
