"""Artifacts on disk and in a bucket: what is written can be read, changes by two hosts are both kept, and old files are
removed.
"""

from __future__ import annotations

import json
import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.dags.project import write_project
from tests.store.proxy import Fault, Plan, Proxy
from tests.store.server import S3Server, options_of
from tidegate.expectations.docs import write_page
from tidegate.pipelines.airflow.alarms import Alarm
from tidegate.pipelines.airflow.operator import CommandRefused
from tidegate.pipelines.definition.config import load_config
from tidegate.pipelines.definition.config.opened import artifacts_of
from tidegate.pipelines.errors import StoreFailed
from tidegate.pipelines.observe.inspect.overview import docs_page, pipeline_overview, stored_page
from tidegate.pipelines.project.cli import run
from tidegate.pipelines.run.work_folder import DAY, clean_artifacts
from tidegate.pipelines.storage.artifacts import ALARMS, Artifacts, ArtifactsInFolder, ArtifactsInStore, report_name


def in_bucket(bucket: str, endpoint: str, **options: str) -> ArtifactsInStore:
    return ArtifactsInStore(f"s3://{bucket}/wh/_tidegate/artifacts", {**options_of(endpoint), **options})


@pytest.fixture(params=["folder", "store"])
def artifacts(request: pytest.FixtureRequest, tmp_path: Path) -> Artifacts:
    if request.param == "folder":
        return ArtifactsInFolder(tmp_path / "artifacts")
    server: S3Server = request.getfixturevalue("server")
    return in_bucket(request.getfixturevalue("bucket"), server.endpoint)


def test_what_is_written_is_read_listed_and_removed(artifacts: Artifacts) -> None:
    assert artifacts.read("a/b.html") is artifacts.written_at("a/b.html") is None
    artifacts.delete("a/b.html")
    for content in (b"first", b"second"):
        artifacts.write("a/b.html", content)
    artifacts.write("ab/c", b"")
    written_at = artifacts.written_at("a/b.html")
    assert written_at is not None
    assert artifacts.read("a/b.html") == b"second"
    assert abs(written_at - datetime.now(UTC).timestamp()) < 120
    assert set(artifacts.names("a")) == {"a/b.html"}, "and not those of a folder whose name begins in the same way"
    assert artifacts.names("nothing") == {}
    artifacts.delete("a/b.html")
    assert artifacts.names("a") == {}
    assert artifacts.address("ab/c").startswith(artifacts.uri)


def test_changes_that_two_hosts_make_at_the_same_moment_both_stay(artifacts: Artifacts) -> None:
    together = threading.Barrier(2)

    def added(entry: bytes, content: bytes | None) -> bytes:
        return (content or b"") + entry

    def add(host: int) -> None:
        for number in range(4):
            together.wait()
            entry = f"{host}{number} ".encode()
            artifacts.change("list", partial(added, entry))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(add, range(2)))
    content = artifacts.read("list")
    assert content is not None
    assert sorted(content.split()) == sorted(f"{host}{number}".encode() for host in range(2) for number in range(4))


def test_a_change_to_nothing_leaves_the_file_as_it_is(artifacts: Artifacts) -> None:
    seen: list[bytes | None] = []

    def look(content: bytes | None) -> None:
        seen.append(content)

    artifacts.change("list", look)
    artifacts.write("list", b"1")
    artifacts.change("list", look)
    assert (seen, artifacts.read("list")) == ([None, b"1"], b"1")


@pytest.mark.parametrize("fault", [Fault.CUT_AFTER, Fault.INTERNAL_ERROR_AFTER])
def test_a_change_that_the_store_made_and_did_not_answer_counts_once(proxy: Proxy, bucket: str, fault: Fault) -> None:
    """As the list of Data Docs does it: an existing entry is not added again."""
    artifacts = in_bucket(bucket, proxy.endpoint)
    artifacts.write("list", b'["a"]')
    proxy.set(Plan(fault=fault, kind="PUT", pattern="list"))
    artifacts.change("list", lambda content: json.dumps([*{*json.loads(content or b"[]"), "b"}]).encode())
    proxy.requests()
    assert proxy.failed, "the change was disturbed"
    assert sorted(json.loads(artifacts.read("list") or b"[]")) == ["a", "b"]


def test_a_change_that_always_comes_too_late_is_an_error_to_be_tried_again(proxy: Proxy, bucket: str) -> None:
    artifacts = in_bucket(bucket, proxy.endpoint, max_retries="0")
    artifacts.write("list", b"1")
    proxy.set(Plan(fault=Fault.PRECONDITION_FAILED, kind="PUT", times=1000))
    with pytest.raises(StoreFailed, match="another host had changed it"):
        artifacts.change("list", lambda content: b"2")
    assert artifacts.read("list") == b"1"


def test_lines_of_a_journal_stay_in_the_order_of_time(artifacts: Artifacts) -> None:
    addresses = [
        artifacts.add_line("alarms", json.dumps(number), datetime(2024, 3, 1, number, tzinfo=UTC))
        for number in range(3)
    ]
    if isinstance(artifacts, ArtifactsInFolder):
        lines = (artifacts.read("alarms.jsonl") or b"").splitlines()
    else:
        assert sorted(addresses) == addresses
        lines = [artifacts.read(name) or b"" for name in sorted(artifacts.names("alarms"))]
    assert [json.loads(line) for line in lines] == [0, 1, 2]


def test_old_reports_are_removed_once_a_day(artifacts: Artifacts) -> None:
    now = int(datetime.now(UTC).timestamp() * 1000)
    old, newest, docs = "reports/p/epoch-000001.html", "reports/p/epoch-000002.html", "quality/p/a"
    for name in (newest, old, docs):
        artifacts.write(name, b"")
    assert clean_artifacts(artifacts, 0, now + 40 * DAY) == 0
    assert clean_artifacts(artifacts, 30, now + 29 * DAY) == 0
    if isinstance(artifacts, ArtifactsInFolder):
        # The cleanup's marker has the time of this machine, and the test is in the future.
        os.utime(artifacts.folder / "cleaned", ((now + 30 * DAY) / 1000,) * 2)
        assert clean_artifacts(artifacts, 30, now + 30 * DAY + DAY // 2) == 0, "not again on this day"
    assert clean_artifacts(artifacts, 30, now + 90 * DAY) == 1
    assert set(artifacts.names("")) == {docs, newest, "cleaned"}


def test_old_alarms_are_removed_and_younger_ones_stay(artifacts: Artifacts) -> None:
    now = int(datetime.now(UTC).timestamp() * 1000)
    address = artifacts.add_line(ALARMS, "{}", datetime.now(UTC))
    assert list(artifacts.journal_files(ALARMS)) == [address.removeprefix(f"{artifacts.uri}/")]
    assert clean_artifacts(artifacts, 30, now + 29 * DAY) == 0
    artifacts.delete("cleaned")
    assert clean_artifacts(artifacts, 30, now + 31 * DAY) == 1
    assert artifacts.journal_files(ALARMS) == {}


def test_a_journal_in_a_folder_has_two_files_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.pipelines.storage.artifacts._LARGEST_JOURNAL", 6)
    folder = ArtifactsInFolder(tmp_path)
    for number in range(5):
        folder.add_line(ALARMS, str(number), datetime.now(UTC))
    assert (folder.read("alarms.1.jsonl"), folder.read("alarms.jsonl")) == (b"0\n1\n2\n", b"3\n4\n")
    assert list(folder.journal_files(ALARMS)) == ["alarms.jsonl", "alarms.1.jsonl"]


def test_a_store_that_fails_ends_no_command_because_of_its_cleaning(proxy: Proxy, bucket: str) -> None:
    artifacts = in_bucket(bucket, proxy.endpoint, max_retries="0", timeout="1s")
    proxy.set(Plan(fault=Fault.SLOW_DOWN, times=1000))
    assert clean_artifacts(artifacts, 30, 100 * DAY) == 0


def test_artifacts_are_in_the_warehouse_of_a_store_and_else_in_the_work_folder(tmp_path: Path) -> None:
    def place(text: str) -> tuple[str, bool]:
        (tmp_path / "tidegate.toml").write_text(text)
        config = load_config(tmp_path / "tidegate.toml")
        assert artifacts_of(config).uri == config.artifacts_uri
        return config.artifacts_uri, config.shares_work

    assert place("") == (str(tmp_path / ".work"), True)
    assert place('work = "w"') == (str(tmp_path / "w"), True)
    assert place('artifacts = "seen"') == (str(tmp_path / "seen"), False)
    assert place('warehouse = "s3://b/wh/"') == ("s3://b/wh/_tidegate/artifacts", False)
    assert place('warehouse = "s3://b/wh"\nartifacts = "gs://c/x"') == ("gs://c/x", False)


def two_hosts(tmp_path: Path, bucket: str, server: S3Server) -> tuple[Path, Path]:
    """Two folders with a project of the same tables, whose artifacts are in a bucket; return their tidegate.toml."""
    files = []
    for name in ("first", "second"):
        file = write_project(tmp_path / name)
        options = "".join(f'{key} = "{value}"\n' for key, value in options_of(server.endpoint).items())
        shared = f'warehouse = "{tmp_path}/first/warehouse"\nartifacts = "s3://{bucket}/seen"\n'
        file.write_text(f"{shared}{file.read_text()}[storage_options]\n{options}")
        files.append(file)
    return files[0], files[1]


def shown(file: Path) -> tuple[bool, list[bool], set[str]]:
    """Return whether the page of a host shows checks and reports of the pipeline, and the pages of the checks."""
    overview = pipeline_overview(file, "sessions")
    listed = (docs_page(file, "sessions", "index.html") or b"").decode()
    pages = set(re.findall(r'href="(check-[^"]+)"', listed))
    assert all(docs_page(file, "sessions", page) for page in pages)
    return overview["has_docs"], [entry["has_report"] for entry in overview["snapshots"]], pages


def test_pages_of_one_host_are_shown_by_another(server: S3Server, bucket: str, tmp_path: Path) -> None:
    """The short form of the next test, without Great Expectations and plots."""
    files = two_hosts(tmp_path, bucket, server)
    assert [shown(file) for file in files] == [(False, [False], set())] * 2
    manifest = SimpleNamespace(pipeline="sessions", epoch=2, timeline=1, watermark=0)
    pinned: Any = SimpleNamespace(manifest=manifest, scope=SimpleNamespace(proof=None), acknowledged=())
    for number, file in enumerate(files):
        check_id, at = f"{number:012x}" + "0" * 20, datetime(2024, 3, number + 1, tzinfo=UTC)
        address = write_page(artifacts_of(load_config(file)), pinned, check_id, at, "passed", ())
        assert address == f"s3://{bucket}/seen/quality/sessions/index.html"
    artifacts_of(load_config(files[0])).write(report_name("sessions", 2), b"<html>a report")
    pages = {f"check-000002-{number:012x}.html" for number in range(2)}
    assert [shown(file) for file in files] == [(True, [True], pages)] * 2
    assert stored_page(files[1], "sessions", report_name("sessions", 2)) == b"<html>a report"
    assert (
        stored_page(files[1], "sessions", report_name("sessions", 1)),
        docs_page(files[1], "sessions", "checks.json"),
    ) == (None, None)


@pytest.mark.long
def test_what_one_host_writes_for_people_the_page_of_another_shows(
    server: S3Server, bucket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = two_hosts(tmp_path, bucket, server)
    answers = []
    for file in (first, second):
        assert run(["quality", "check", "sessions", "--report", "--json", "--config", str(file)]) == 0
        answers.append(json.loads(capsys.readouterr().out))
    assert answers[0]["docs"] == f"s3://{bucket}/seen/quality/sessions/index.html"
    assert answers[0]["report"] == f"s3://{bucket}/seen/reports/sessions/epoch-000002.html"
    for file in (first, second):
        has_docs, reports, pages = shown(file)
        assert (has_docs, reports, len(pages)) == (True, [True], 2), "the check of each host"
        assert b"<html" in (stored_page(file, "sessions", report_name("sessions", 2)) or b"")
    left = {path.name for path in (tmp_path / "second" / ".work").rglob("*.html")}
    assert left == set(), "nothing of it is on the host's own disk"


def test_an_alarm_of_any_host_is_among_those_of_the_project(server: S3Server, bucket: str, tmp_path: Path) -> None:
    failed = CommandRefused("quality ended: a pane came twice", 5, "a pane came twice")
    for file, host in zip(two_hosts(tmp_path, bucket, server), ("first", "second"), strict=True):
        instance = SimpleNamespace(dag_id="sessions__backfill", run_id=host, task_id="backfill", try_number=1)
        Alarm(str(file), {"sessions": "airflow"})({"ti": instance, "exception": failed})
    artifacts = artifacts_of(load_config(tmp_path / "first" / "tidegate.toml"))
    alarms = [json.loads(artifacts.read(name) or b"") for name in artifacts.names("alarms")]
    assert sorted(alarm["run"] for alarm in alarms) == ["first", "second"]
    assert not (tmp_path / "first" / ".work" / "alarms.jsonl").exists()
