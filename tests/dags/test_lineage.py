"""The operator's methods for OpenLineage, called by Airflow's own provider, and the resulting events."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.openlineage.extractors.manager import ExtractorManager
from airflow.providers.openlineage.plugins.adapter import OpenLineageAdapter
from airflow.utils.state import TaskInstanceState
from openlineage.client import OpenLineageClient
from openlineage.client.transport.file import FileConfig, FileTransport

from tests.lake import Lake, at
from tests.pipelines.by_hand import START_OF_DRIVER
from tests.pipelines.project.cli.conftest import project as project
from tests.pipelines.project.cli.project import Project
from tidegate.pipelines.airflow.command import Command, CommandOutcome
from tidegate.pipelines.airflow.lineage import CommandLineage
from tidegate.pipelines.airflow.operator import TidegateOperator
from tidegate.pipelines.project.cli import run

RUNNING, SUCCESS, FAILED = TaskInstanceState.RUNNING, TaskInstanceState.SUCCESS, TaskInstanceState.FAILED
DAG_RUN: Any = SimpleNamespace(run_id="manual__1")


def operator(project: Project, *arguments: str, **options: Any) -> TidegateOperator:
    return TidegateOperator(
        task_id="windows",
        arguments=list(arguments),
        config=str(project.folder / "tidegate.toml"),
        **options,
    )


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """`tidegate tables lineage` runs in this process, so that tests don't have to start an interpreter."""

    def here(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, run([*command[3:], "--config", options["env"]["TIDEGATE_CONFIG"]]))

    made: Any = CommandLineage.__init__

    def init(self: CommandLineage, *given: Any) -> None:
        made(self, *given, here)

    monkeypatch.setattr(CommandLineage, "__init__", init)


def ran(task: TidegateOperator, result: Any = None, since: int = START_OF_DRIVER) -> TidegateOperator:
    """The operator after its command has ended. The command held the lease from a given time on, int64 epoch
    milliseconds.
    """
    task.running = Command((), {}, print)
    lease = {"pipeline": "sessions", "since": since, "until": since + 3_600_000}
    task.running.outcome = CommandOutcome(0, None, result, lease)
    return task


def event_of(task: TidegateOperator, state: TaskInstanceState, folder: Path) -> dict[str, Any]:
    """Return the event that Airflow's provider writes for a task."""
    metadata = ExtractorManager().extract_metadata(DAG_RUN, task, state, None)
    file = folder / "events.jsonl"
    client = OpenLineageClient(transport=FileTransport(FileConfig(str(file), append=True)))
    moment = datetime(2024, 3, 1, tzinfo=UTC).isoformat()
    about: dict[str, Any] = {
        "run_id": str(uuid.uuid4()),
        "job_name": f"sessions__backfill.{task.task_id}",
        "task": metadata,
        "owners": [],
        "tags": [],
        "job_description": None,
        "job_description_type": None,
        "nominal_start_time": moment,
        "nominal_end_time": moment,
        "run_facets": {},
    }
    adapter = OpenLineageAdapter(client=client)
    if state == RUNNING:
        adapter.start_task(event_time=moment, **about)
    elif state == FAILED:
        adapter.fail_task(end_time=moment, error="exit code 1", **about)
    else:
        adapter.complete_task(end_time=moment, **about)
    event: dict[str, Any] = json.loads(file.read_text().splitlines()[-1])
    return event


def named(datasets: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return datasets by the last part of their names."""
    return {each["name"].rsplit("/", 1)[-1]: each for each in datasets}


def test_at_its_start_a_task_names_its_source_and_the_tables_that_it_is_about_to_write(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", "secret")
    # Other tests may occupy the processor for seconds.
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__EXECUTION_TIMEOUT", "120")
    (project.folder / "of_the_project.py").open("a").write(
        "import os\nassert 'AIRFLOW__CORE__FERNET_KEY' not in os.environ\n"
    )
    Lake(project.folder).append(("ann", at("10:00"), 1))
    event = event_of(operator(project, "backfill", "sessions", "", "--start=2024-03-01"), RUNNING, project.folder)
    assert event["eventType"] == "START"
    (events,) = event["inputs"]
    assert (events["namespace"], events["name"]) == ("file", str(project.folder / "warehouse" / "events"))
    assert events["facets"]["version"]["datasetVersion"] == "0"
    outputs = named(event["outputs"])
    assert list(outputs) == ["results", "late", "rejects", "epochs"]
    total = outputs["results"]["facets"]["columnLineage"]["fields"]["total"]["inputFields"]
    assert [(each["field"], each["transformations"][0]["subtype"]) for each in total] == [("value", "AGGREGATION")]
    facets = [facet for each in (*event["inputs"], *event["outputs"]) for facet in each["facets"].values()]
    assert all(facet["_schemaURL"].startswith("https://openlineage.io/spec/facets/") for facet in facets)
    assert all("outputFacets" not in each or each["outputFacets"] == {} for each in event["outputs"])


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(
    ("command", "state", "kind"),
    [("backfill", SUCCESS, "COMPLETE"), ("stream", FAILED, "FAIL"), ("restore", SUCCESS, "COMPLETE")],
)
def test_at_its_end_a_task_tells_what_its_command_put_out_however_it_ended(
    command: str, state: TaskInstanceState, kind: str, project: Project
) -> None:
    Lake(project.folder).append(("ann", at("10:00"), 1))
    hand = project.by_hand
    hand.epoch(("ann", at("10:00"), 1), ("bob", at("10:05"), 2), watermark=at("12:00"))
    event = event_of(ran(operator(project, command, "sessions")), state, project.folder)
    assert event["eventType"] == kind
    assert event["inputs"][0]["inputFacets"]["inputStatistics"]["rowCount"] == 2
    assert event["inputs"][0]["facets"]["version"]["datasetVersion"] == "1"
    outputs = named(event["outputs"])
    statistics = {table: each["outputFacets"]["outputStatistics"] for table, each in outputs.items()}
    assert {table: each["rowCount"] for table, each in statistics.items()} == {
        "results": 2,
        "late": 0,
        "rejects": 0,
        "epochs": 1,
    }
    assert statistics["results"]["size"] > 0
    assert outputs["results"]["facets"]["version"]["datasetVersion"] == str(hand.tables.open("results").version())


@pytest.mark.usefixtures("in_this_process")
def test_a_check_that_fails_tells_every_outcome(project: Project) -> None:
    hand = project.by_hand
    hand.epoch(("ann", at("10:00"), 1), watermark=at("12:00"))
    result = {
        "windows": 1,
        "versions": {"results": 7},
        "checks": [
            check("panes", "expect_panes_to_be_dense", "user", success=False, observed="1 of 4 rows break it"),
            check("new final windows: mine", "expect_column_values_to_not_be_null", "total", "warning"),
            check("state", "expect_keys_to_hash_to_their_group", ""),
        ],
    }
    event = event_of(
        ran(operator(project, "quality", "check", "sessions", "", "--report"), result), FAILED, project.folder
    )
    inputs = named(event["inputs"])
    assert list(inputs) == ["results", "late", "rejects", "epochs", "state"]
    assert inputs["results"]["facets"]["version"]["datasetVersion"] == "7", "the version that was checked"
    dense, nulls = inputs["results"]["inputFacets"]["dataQualityAssertions"]["assertions"]
    assert (dense["assertion"], dense["success"], dense["column"]) == ("expect_panes_to_be_dense", False, "user")
    assert (dense["severity"], nulls["severity"]) == ("error", "warn")
    metrics = inputs["results"]["inputFacets"]["dataQualityMetrics"]
    assert (metrics["rowCount"], metrics["columnMetrics"]["total"]["nullCount"]) == (1, 0)
    assert len(inputs["state"]["inputFacets"]["dataQualityAssertions"]["assertions"]) == 1
    assert list(named(event["outputs"])) == ["quality"]


def check(
    suite: str, expectation: str, about: str, severity: str = "critical", success: bool = True, observed: str = ""
) -> dict[str, Any]:
    return {
        "suite": suite,
        "expectation": expectation,
        "about": about,
        "severity": severity,
        "success": success,
        "observed": observed or "0 of 4 rows break it",
        "rows": 4,
        "failing": 0 if success else 1,
    }


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(
    "arguments", [("snapshots", "check", "sessions", "latest"), ("savepoints", "create", "sessions")]
)
def test_commands_that_change_nothing_for_others_name_no_dataset(arguments: tuple[str, ...], project: Project) -> None:
    event = event_of(operator(project, *arguments), RUNNING, project.folder)
    assert (event["inputs"], event["outputs"]) == ([], [])


def test_a_task_that_is_skipped_or_never_ran_asks_nothing(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", None)
    skipped = operator(project, "stream", "sessions", only_if="False")
    for told in (
        skipped.get_openlineage_facets_on_start(),
        skipped.get_openlineage_facets_on_complete(None),
        operator(project, "stream", "sessions").get_openlineage_facets_on_failure(None),
    ):
        assert (told.inputs, told.outputs) == ([], [])


def late_answer(*command: Any, **options: Any) -> Any:
    raise subprocess.TimeoutExpired("tidegate", options["timeout"])


def refusal(*command: Any, **options: Any) -> Any:
    return subprocess.CompletedProcess([], 2, "", "tidegate: unknown pipeline 'nobody'\n")


def no_answer(*command: Any, **options: Any) -> Any:
    return subprocess.CompletedProcess([], 0, "", "")


def no_interpreter(*command: Any, **options: Any) -> Any:
    raise FileNotFoundError("no python there")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (late_answer, "took longer than 8 s: give it more time with execution_timeout"),
        (refusal, "`tidegate tables lineage sessions`: unknown pipeline 'nobody'"),
        (no_answer, "lineage.json"),
        (no_interpreter, "no python there"),
    ],
)
def test_a_failure_is_a_line_in_the_log_and_never_fails_the_task(
    answer: Callable[..., Any], reason: str, project: Project
) -> None:
    texts: list[str] = []
    told = CommandLineage(
        ["stream", "sessions"], None, str(project.folder / "x.toml"), ["tidegate"], texts.append, answer
    )
    assert told.before() is None
    assert told.after(CommandOutcome(0)) is None
    assert reason in texts[0]
    assert len(texts) == 2


def test_values_of_options_before_the_pipeline_are_not_taken_for_it(project: Project) -> None:
    asked: list[str] = []

    def answer(command: list[str], **options: Any) -> Any:
        asked.append(command[3])
        return refusal()

    config = str(project.folder / "tidegate.toml")
    for words in (["--start", "2024-03-01", "sessions"], ["sessions", "--start", "2024-03-01"], ["nobody"]):
        CommandLineage(["backfill", *words], None, config, ["tidegate"], asked.append, answer).before()
    assert [word for word in asked if " " not in word] == ["sessions", "sessions", "nobody"]


@pytest.mark.usefixtures("in_this_process")
def test_without_the_package_the_operator_says_so_at_most(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    Lake(project.folder).append(("ann", at("10:00"), 1))
    for module in ("airflow.providers.openlineage.extractors", "openlineage.client.event_v2", "openlineage.client"):
        monkeypatch.setitem(sys.modules, module, None)
    texts: list[str] = []
    config = str(project.folder / "tidegate.toml")
    assert CommandLineage(["stream", "sessions"], None, config, ["tidegate"], texts.append).before() is None
    assert len(texts) == 1


def has(part: Any, whole: Any) -> bool:
    """Return True if every value of a part is in the whole; each item of a list must have a match there."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(
            name in whole and has(value, whole[name]) for name, value in part.items()
        )
    if isinstance(part, list):
        return isinstance(whole, list) and all(any(has(item, other) for other in whole) for item in part)
    return bool(part == whole)


@pytest.mark.usefixtures("in_this_process")
def test_the_event_of_the_page_is_one_that_is_sent(project: Project) -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations" / "lineage.md").read_text()
    (block,) = re.findall(r"^```json\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    shown = json.loads(block)
    project.rewrite("session_pipeline(where='value > 0')")
    Lake(project.folder).append(("ann", at("10:00"), 1))
    hand = project.by_hand
    hand.epoch(("ann", at("10:00"), 1), ("bob", at("10:05"), 2), watermark=at("12:00"))
    event = event_of(ran(operator(project, "backfill", "sessions")), SUCCESS, project.folder)
    sent = json.loads(json.dumps(event).replace(str(project.folder), "/lake"))
    assert has(shown, sent), json.dumps(sent, indent=1)
    shown["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] = 3
    assert not has(shown, sent)
