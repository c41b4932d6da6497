"""The watcher of commits: what it sees in tables, its trigger in Airflow, and the DAG that it starts. Starts of the
stream for commits: once, after the current run, again if nothing moves, and none is lost.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import jinja2
import pytest
from airflow.serialization.encoders import encode_trigger
from airflow.serialization.serialized_objects import DagSerialization
from airflow.triggers.base import BaseEventTrigger
from airflow.utils.types import DagRunType
from deltalake import DeltaTable

from tests.commit_times import date_commit
from tests.dags.project import first_event, write_project
from tests.lake import DAY0, LOCAL, Lake, hourly_pipeline
from tests.listed_files import ListedFiles
from tests.recovery.arrivals import run as stream_without_spark
from tidegate.pipelines import Pipeline
from tidegate.pipelines.airflow import commits, project_dags
from tidegate.pipelines.airflow.commits import AGAIN_SECONDS, CommitTrigger, Polls, commits_asset
from tidegate.pipelines.definition.config import Config, load_config
from tidegate.pipelines.errors import REFUSED, StoreFailed, TidegateError, UsageError
from tidegate.pipelines.observe.inspect.unread import Poll, SourceWatch
from tidegate.pipelines.project.cli import run
from tidegate.pipelines.run.limits import EpochLimits
from tidegate.pipelines.sources.watched import WatchedSource, note_sources, noted_sources
from tidegate.pipelines.storage.delta_log import entry_name
from tidegate.pipelines.storage.warehouse import Warehouse

HOURS = hourly_pipeline()


def project(lake: Lake, *pipelines: Pipeline, **fields: str) -> Path:
    """Write tidegate.toml of a lake."""
    lines = []
    for pipeline in pipelines or (HOURS,):
        lines += [f"[pipelines.{pipeline.name}]", 'object = "a:b"', "start = 2024-03-01"]
        lines += [f"{name} = {value}" for name, value in fields.items()]
    file = lake.folder / "tidegate.toml"
    file.write_text("\n".join(lines))
    for pipeline in pipelines or (HOURS,):
        note_sources(load_config(file), pipeline)
    return file


def stream(lake: Lake, pipeline: Pipeline = HOURS) -> None:
    stream_without_spark(LOCAL, lake, pipeline=pipeline, limits=EpochLimits())


def arrive(lake: Lake, hour: int) -> int:
    return lake.append(("ann", DAY0 + timedelta(hours=hour), hour), ("bob", DAY0 + timedelta(hours=hour), 1))


def test_a_watch_follows_a_table_from_before_it_exists_and_the_pipeline_that_reads_it(lake: Lake) -> None:
    watch = SourceWatch(project(lake), "hours")
    assert watch.poll() == Poll(None)
    arrive(lake, 1)
    assert watch.poll() == Poll("version 0 of events")
    assert not watch.is_driven()
    stream(lake)
    assert watch.poll() == Poll(None, (1, 1), is_taken_over=True)
    arrive(lake, 2)
    arrive(lake, 3)
    assert watch.poll().unread == "version 1 of events"
    assert SourceWatch(project(lake), "hours").poll().unread == "version 1 of events", "after a restart"
    stream(lake)
    assert watch.poll().unread is None


def test_many_pipelines_on_one_table_are_told_by_their_own_positions(lake: Lake) -> None:
    second = hourly_pipeline(name="others")
    config = project(lake, HOURS, second)
    arrive(lake, 1)
    stream(lake)
    watches = {pipeline.name: SourceWatch(config, pipeline.name) for pipeline in (HOURS, second)}
    assert {name: watch.poll().unread for name, watch in watches.items()} == {
        "hours": None,
        "others": "version 0 of events",
    }


def test_a_backfill_that_left_rows_is_no_taken_over_pipeline(lake: Lake) -> None:
    arrive(lake, 1)
    arrive(lake, 30)
    lake.backfill(LOCAL, HOURS, DAY0, DAY0 + timedelta(days=1))  # type: ignore[arg-type]
    watch = SourceWatch(project(lake), "hours")
    assert watch.poll() == Poll("rows of events that the backfill did not read", (1, 1))
    stream(lake)
    assert watch.poll().unread is None


def test_maintenance_of_a_source_without_rows_starts_a_run_after_a_day_and_the_run_passes_it(lake: Lake) -> None:
    """Otherwise Delta removes the log entries after the position, and the stream can't continue when new rows
    arrive.
    """
    arrive(lake, 1)
    arrive(lake, 2)
    stream(lake)
    events = DeltaTable(lake.path("events"))
    events.optimize.compact()
    config = project(lake)
    assert SourceWatch(config, "hours").poll().unread is None
    date_commit(Path(lake.path("events"), "_delta_log", entry_name(2)), lake.clock() - 86_400_000)
    watch = SourceWatch(config, "hours")
    assert watch.poll().unread == "version 2 of events"
    stream(lake)
    assert watch.poll() == Poll(None, (1, 2), is_taken_over=True)
    assert lake.snapshot(HOURS).manifest.position_in("events").version == 2


def test_what_the_code_says_of_its_sources_is_read_again_after_a_run_of_new_code(lake: Lake) -> None:
    config, now = project(lake), [0.0]
    watch = SourceWatch(config, "hours", timer=lambda: now[0])
    arrive(lake, 1)
    stream(lake)
    assert watch.poll().unread is None
    DeltaTable(lake.path("events")).delete("user = 'ann'")
    assert watch.poll().unread == "version 1 of events"
    ignoring = replace(HOURS, source=replace(HOURS.source, changes="ignore"))  # type: ignore[type-var]
    note_sources(load_config(config), ignoring)
    now[0] = 1000.0
    assert watch.poll().unread is None, "the stream passes over it"


def test_a_pipeline_that_noted_nothing_yet_has_a_first_run(lake: Lake) -> None:
    watch = SourceWatch(project(lake), "hours")
    (lake.folder / ".work" / "sources" / "hours.json").unlink()
    assert watch.poll() == Poll("a first run of the stream, which records its sources")
    arrive(lake, 1)
    stream(lake)
    assert watch.poll() == Poll("a first run of the stream, which records its sources", (1, 1), is_taken_over=True)
    note_sources(lake.config, HOURS)
    assert watch.poll() == Poll(None, (1, 1), is_taken_over=True)


def test_a_look_that_failed_begins_from_scratch(lake: Lake) -> None:
    config = project(lake)
    text = config.read_text()
    config.write_text("[")
    watch = SourceWatch(config, "hours")
    with pytest.raises(TidegateError):
        watch.poll()
    config.write_text(text)
    assert watch.poll() == Poll(None)


# --- in Airflow --------------------------------------------------------------------------------------------------


@pytest.fixture
def no_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "_active_runs", lambda pipeline, kind: 0)


@pytest.mark.usefixtures("no_runs")
def test_the_trigger_fires_for_what_came_while_it_was_away_and_for_what_comes(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = str(project(lake))
    arrive(lake, 1)
    stream(lake)
    arrive(lake, 2)
    trigger = CommitTrigger(config, "hours", 0.02)
    assert first_event(trigger) == {"pipeline": "hours", "reason": "version 1 of events"}
    stream(lake)
    look, seen = SourceWatch.poll, []

    def look_before_the_next_commit(watch: SourceWatch) -> Poll:
        found = look(watch)
        if not seen:
            arrive(lake, 3)
        seen.append(found.unread)
        return found

    monkeypatch.setattr(SourceWatch, "poll", look_before_the_next_commit)
    assert first_event(trigger) == {"pipeline": "hours", "reason": "version 2 of events"}
    assert seen[0] is None


@pytest.mark.usefixtures("no_runs")
def test_a_look_that_takes_long_keeps_no_other_trigger_waiting(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()

    def slow(watch: SourceWatch) -> Poll:
        assert answered.wait(20)
        return Poll("version 1 of events", (1, 4), is_taken_over=True)

    monkeypatch.setattr(SourceWatch, "poll", slow)

    monkeypatch.setattr(SourceWatch, "is_driven", lambda watch: False)

    async def beside() -> Any:
        event = asyncio.ensure_future(anext(aiter(CommitTrigger(str(project(lake)), "hours", 0.01).run())))
        for _ in range(100):
            await asyncio.sleep(0)
            assert not event.done()
        answered.set()
        return await asyncio.wait_for(event, 20)

    assert asyncio.run(beside()).payload["reason"] == "version 1 of events"


def test_the_trigger_is_plain_values_and_another_pipeline_has_another_one() -> None:
    hashes = set()
    for pipeline in ("hours", "hours", "others"):
        asset = commits_asset("/project/tidegate.toml", pipeline)
        (watcher,) = asset.watchers
        encoded = encode_trigger(watcher.trigger)
        assert json.loads(json.dumps(encoded["kwargs"])) == encoded["kwargs"]
        hashes.add(BaseEventTrigger.hash(encoded["classpath"], encoded["kwargs"]))
    assert len(hashes) == 2


HOURLY = {"stream_schedule": '"0 * * * *"'}


@pytest.mark.parametrize(
    ("settings", "watches", "schedule"),
    [
        ({}, False, "*/15 * * * *"),
        ({"stream_mode": '"commits"'}, True, None),
        ({"stream_mode": '"commits"', **HOURLY}, True, "0 * * * *"),
    ],
)
def test_the_dag_of_the_stream_is_scheduled_by_what_tidegate_toml_says(
    settings: dict[str, str], watches: bool, schedule: str | None, tmp_path: Path
) -> None:
    dag = project_dags(write_project(tmp_path, max_lag_minutes="90", **settings))["sessions__stream"]
    stored = json.dumps(DagSerialization.to_dict(dag))
    assert stored.count("CommitTrigger") == watches
    assert [each for each in ("*/15 * * * *", "0 * * * *") if each in stored] == ([schedule] if schedule else [])
    assert dag.params["mode"] == "available-now"
    template = dag.get_task("stream").skip_if_held
    # A run that no person started leaves its data to the run in progress.
    kinds = {DagRunType.ASSET_TRIGGERED: "True", DagRunType.SCHEDULED: "True", DagRunType.MANUAL: "False"}
    for kind, skips in kinds.items():
        run = type("Run", (), {"run_type": kind})
        assert jinja2.Template(template).render(dag_run=run) == skips


# --- what the runs of the stream note ----------------------------------------------------------------------------

CODE = """from tests.lake import DeltaSource, hourly_pipeline

hours = hourly_pipeline(source=DeltaSource("events", timestamp="at", changes="ignore"))
"""


def test_a_run_notes_its_sources_also_if_they_do_not_exist_yet(tmp_path: Path) -> None:
    (tmp_path / "hours_of_a_project.py").write_text(CODE)
    file = tmp_path / "tidegate.toml"
    file.write_text('[pipelines.hours]\nobject = "hours_of_a_project:hours"\nstart = 2024-03-01\n')
    stream_hours = ["stream", "hours", "--available-now", "--config", str(file)]
    assert run(stream_hours) == REFUSED
    config = load_config(file)
    assert noted_sources(config, "hours") == [
        WatchedSource("tidegate.pipelines.sources.delta.news", "events", {"changes": "ignore"})
    ]
    note = tmp_path / ".work" / "sources" / "hours.json"
    os.utime(note, ns=(1, 1))
    assert run(stream_hours) == REFUSED
    assert note.stat().st_mtime_ns == 1, "the same is not written again"
    assert SourceWatch(file, "hours").poll() == Poll(None)


def test_a_source_of_another_kind_is_refused_by_name_and_foreign_code_is_not_loaded(tmp_path: Path) -> None:
    config = Config(root=tmp_path)
    assert noted_sources(config, "hours") is None
    note_sources(config, replace(HOURS, source=ListedFiles(str(tmp_path / "list"), timestamp="at")))
    with pytest.raises(UsageError, match=r"can.t be watched for commits, .* stream_mode = .schedule"):
        noted_sources(config, "hours")
    with pytest.raises(UsageError, match="not part of tidegate"):
        WatchedSource("os", "events", {}).news(Warehouse(str(tmp_path)))


UNREAD = Poll("version 1 of events", (1, 4), is_taken_over=True)
READ = Poll(None, (1, 4), is_taken_over=True)


@dataclass
class World:
    """The environment that one trigger sees: a table, Airflow's runs, the lease and a clock."""

    poll: Poll | Exception = UNREAD
    runs: dict[str, int] = field(default_factory=dict)
    is_held: bool = False
    now: float = 0.0
    lines: list[str] = field(default_factory=list)

    def polls(self) -> Polls:
        def look() -> Poll:
            if isinstance(self.poll, Exception):
                raise self.poll
            return self.poll

        watch: Any = type("Watch", (), {"poll": lambda _: look(), "is_driven": lambda _: self.is_held})()
        return Polls(watch, lambda kind: self.runs.get(kind, 0), self.lines.append, lambda: self.now)


def test_commits_during_a_run_lead_to_one_more_run_after_it() -> None:
    world = World()
    polls = world.polls()
    assert polls.next_reason()
    world.runs["stream"] = 1
    for epoch in range(5, 9):
        world.poll = Poll(f"version {epoch} of events", (1, epoch), is_taken_over=True)
        assert polls.next_reason() is None
    world.runs["stream"] = 0
    assert polls.next_reason() == "version 8 of events"
    assert polls.next_reason() is None


def test_what_came_after_a_start_that_found_nothing_starts_the_stream_at_once() -> None:
    """As if the first run was refused because the table did not exist yet; the table comes a minute later."""
    world = World(Poll("a first run"))
    polls = world.polls()
    assert [polls.next_reason(), polls.next_reason()] == [None, "a first run"]
    for look, reason in ((Poll(None), None), (Poll("version 0"), None), (Poll("version 0"), "version 0")):
        world.poll, world.now = look, world.now + 10
        assert polls.next_reason() == reason


def test_a_driver_that_nobody_started_in_airflow_is_waited_for() -> None:
    world = World(is_held=True)
    polls = world.polls()
    assert polls.next_reason() is None
    world.is_held = False
    assert polls.next_reason() == UNREAD.unread


def test_a_run_that_led_to_nothing_is_tried_again_as_seldom_as_a_schedule_does() -> None:
    world = World()
    polls, started = world.polls(), []
    for second in range(0, 3 * int(AGAIN_SECONDS), 10):
        world.now = float(second)
        # While the stream fails, new commits don't start another failing run each.
        world.poll = Poll(f"version {second} of events", (1, 4), is_taken_over=True)
        if polls.next_reason():
            started.append(second)
    assert started == [0, AGAIN_SECONDS, 2 * AGAIN_SECONDS]


def test_a_stream_does_not_come_between_the_intervals_of_a_backfill() -> None:
    left = Poll("rows of events that the backfill did not read", (1, 4))
    world = World(left, {"backfill": 2})
    polls = world.polls()
    assert [polls.next_reason() for _ in range(3)] == [None] * 3
    assert "backfill" in world.lines[-1]
    world.runs["backfill"] = 0
    assert polls.next_reason() == left.unread
    assert world.polls().next_reason() is None, "a look between two intervals alone decides nothing"


@pytest.mark.parametrize("error", [StoreFailed("no answer"), UsageError("tidegate.toml"), KeyError("x"), OSError()])
def test_a_watcher_that_can_not_look_goes_on_and_lets_the_stream_say_why(error: Exception) -> None:
    world = World(error)
    polls, started = world.polls(), []
    for second in range(0, 3 * int(AGAIN_SECONDS), 10):
        world.now = float(second)
        if reason := polls.next_reason():
            started.append((second, reason))
    assert [second for second, _ in started] == [AGAIN_SECONDS, 2 * AGAIN_SECONDS]
    assert all(type(error).__name__ in reason for _, reason in started)
    world.poll = READ
    assert polls.next_reason() is None
    world.poll = UNREAD
    assert polls.next_reason() == UNREAD.unread, "it is as good as new"


def test_a_short_failure_starts_nothing_and_each_line_is_logged_once() -> None:
    world = World(READ)
    polls = world.polls()
    for outcome in (READ, StoreFailed("503"), StoreFailed("503"), READ, READ, UNREAD, UNREAD):
        world.poll, world.now = outcome, world.now + AGAIN_SECONDS / 4
        polls.next_reason()
    assert [line.partition(":")[0] for line in world.lines] == [
        "nothing is unread",
        "can't poll",
        "nothing is unread",
        "version 1 of events",
    ]
