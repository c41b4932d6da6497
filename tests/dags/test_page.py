"""The page in Airflow shows a pipeline only to users who may read its DAGs. The page with Airflow's own login: each
role of the simple auth manager, teams, and invalid tokens. Parsing the DAG folder is cheap, and imports nothing of
Spark, the windows or the expectations.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.api_fastapi.app import create_auth_manager, purge_cached_app
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.api_fastapi.core_api.security import get_user
from airflow.models.dag import DagModel
from airflow.models.revoked_token import RevokedToken
from airflow.serialization.serialized_objects import DagSerialization
from deltalake import DeltaTable
from fastapi.testclient import TestClient

from tests.dags.project import write_project
from tidegate.pipelines.airflow import page, project_dags
from tidegate.pipelines.definition.config import load_config
from tidegate.pipelines.definition.config.opened import artifacts_of, warehouse_of
from tidegate.pipelines.errors import StoreFailed
from tidegate.pipelines.ledger.snapshots.commit import commit_snapshot
from tidegate.pipelines.ledger.snapshots.head import read_snapshot
from tidegate.pipelines.ledger.snapshots.publish import publish_table
from tidegate.pipelines.ledger.tables import quality as quality_table
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.ledger.tables.quality import QualityRow
from tidegate.pipelines.observe.inspect.summary import Summaries
from tidegate.pipelines.observe.report.plain_text import look
from tidegate.pipelines.project.cli import run
from tidegate.pipelines.storage.artifacts import page_name
from tidegate.pipelines.storage.credentials import remember
from tidegate.pipelines.storage.warehouse import arrow_schema


class Manager:
    """An auth manager that allows a user to read the DAGs that it names."""

    def is_authorized_dag(self, *, method: str, details: Any, user: Any, access_entity: Any = None) -> bool:
        if method == "POST" and access_entity is DagAccessEntity.RUN:
            return details.id in user.triggers
        return method == "GET" and details.id in user.dags


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    monkeypatch.setenv("TIDEGATE_CONFIG", str(write_project(tmp_path)))
    monkeypatch.setattr(page, "get_auth_manager", Manager)
    # Only an Airflow with a database has DAGs.
    monkeypatch.setattr(page, "names_in_airflow", list)
    monkeypatch.setattr(page, "stream_in_airflow", lambda name: None)
    monkeypatch.setattr(page, "streams_in_airflow", lambda names: {})
    monkeypatch.setattr(page, "SUMMARIES", Summaries())
    yield TestClient(page.app)
    page.app.dependency_overrides.clear()


def log_in(*dags: str, triggers: tuple[str, ...] = ()) -> None:
    page.app.dependency_overrides[get_user] = lambda: SimpleNamespace(dags=dags, triggers=triggers)


def line_of(client: TestClient, name: str = "sessions") -> dict[str, Any]:
    """The line of a pipeline in the table."""
    (line,) = client.get("/summaries", params={"name": name}).json()
    return dict(line)


def test_a_user_sees_the_pipelines_whose_dags_may_be_read(client: TestClient) -> None:
    log_in("sessions__stream")
    assert client.get("/pipelines").json() == ["sessions"]
    assert client.get("/pipelines/sessions").json()["epoch"] == 2
    log_in("other__stream")
    assert client.get("/pipelines").json() == []


def test_pipelines_of_several_projects_are_shown_under_the_names_of_their_dags(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dags: dict[str, Any] = {}
    for team in ("team_a_", "team_b_"):
        (tmp_path / team).mkdir()
        made = project_dags(write_project(tmp_path / team), prefix=team)[f"{team}sessions__stream"]
        dags[f"{team}sessions"] = DagSerialization.from_dict(DagSerialization.to_dict(made))
    (tmp_path / "team_b_" / "tidegate.toml").unlink()
    monkeypatch.setattr(page, "names_in_airflow", lambda: sorted(dags))
    monkeypatch.setattr(page, "stream_in_airflow", dags.get)
    monkeypatch.setattr(page, "streams_in_airflow", lambda names: dict.fromkeys(names, 1))
    log_in("team_a_sessions__stream", "team_b_sessions__stream", triggers=("team_a_sessions__restart",))
    assert client.get("/pipelines").json() == ["team_a_sessions", "team_b_sessions"]
    first = client.get("/pipelines/team_a_sessions").json()
    assert (first["pipeline"], first["epoch"], first["may_restart"]) == ("team_a_sessions", 2, True)
    second = client.get("/pipelines/team_b_sessions").json()
    assert "there is no" in second["error"], "a project that can't be read hides no other"
    lines = client.get("/summaries?name=team_a_sessions&name=team_b_sessions").json()
    assert [line["pipeline"] for line in lines] == ["team_a_sessions", "team_b_sessions"]
    assert (lines[0]["epoch"], lines[0]["driven_by"], lines[0]["error"]) == (2, "stream", None)
    assert "there is no" in lines[1]["error"]
    log_in("team_b_sessions__stream")
    assert client.get("/pipelines/team_a_sessions").status_code == 403


@pytest.mark.parametrize(
    "path",
    [
        "/pipelines/sessions",
        "/pipelines/sessions/reports/2",
        "/pipelines/sessions/reports/advice.html",
        "/pipelines/sessions/checks/index.html",
        "/pipelines/nothing",
    ],
)
def test_without_permission_nothing_is_told_not_even_what_there_is(path: str, client: TestClient) -> None:
    log_in("other__stream")
    assert client.get(path).status_code == 403


def test_a_line_tells_nothing_of_a_pipeline_that_the_user_may_not_read(client: TestClient) -> None:
    log_in("other__stream")
    for name in ("sessions", "nothing"):
        error = f"no permission to read the DAGs of {name}"
        assert line_of(client, name) == {"pipeline": name, "error": error, "may_restart": False}
    for wrong in ("?name=..%2Fetc", "", "?" + "&".join(["name=sessions"] * (page.MOST + 1))):
        assert client.get(f"/summaries{wrong}").status_code == 422


def damage_state(folder: Path) -> None:
    tables = PipelineTables(warehouse_of(load_config(folder / "tidegate.toml")), "sessions")
    for entry in Path(tables.path("state"), "_delta_log").glob("*.json"):
        entry.write_text("garbage")


def damage_epochs(folder: Path) -> None:
    tables = PipelineTables(warehouse_of(load_config(folder / "tidegate.toml")), "sessions")
    for file in Path(tables.path("epochs")).glob("*.parquet"):
        file.write_bytes(b"garbage")


def remove_pipeline(folder: Path) -> None:
    file = folder / "tidegate.toml"
    file.write_text(file.read_text().replace("[pipelines.sessions]", "[pipelines.renamed]"))


def plant_link(folder: Path) -> None:
    (folder / ".work" / "quality").mkdir(parents=True)
    (folder / ".work" / "quality" / "sessions").symlink_to("/proc/self")


@pytest.mark.parametrize("damage", [damage_state, damage_epochs, remove_pipeline, plant_link])
def test_a_pipeline_that_can_not_be_read_has_an_error_of_its_own(
    damage: Callable[[Path], None], client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another pipeline, of another project, is shown all the same."""
    (tmp_path / "other").mkdir()
    sound = write_project(tmp_path / "other")
    (tmp_path / "damaged").mkdir()
    config = {"sound": sound, "damaged": write_project(tmp_path / "damaged")}
    dags = {name: project_dags(file)["sessions__stream"] for name, file in config.items()}
    monkeypatch.setattr(page, "stream_in_airflow", dags.get)
    log_in("sound__stream", "damaged__stream")
    damage(tmp_path / "damaged")
    bad, good = client.get("/summaries?name=damaged&name=sound").json()
    assert (good["epoch"], good["error"]) == (2, None)
    assert bad["error"]
    assert client.get("/pipelines/damaged").json()["error"]
    assert client.get("/pipelines/sound").json()["epoch"] == 2


@pytest.mark.parametrize("path", ["/pipelines", "/summaries?name=sessions", "/pipelines/sessions"])
def test_an_answer_that_the_page_has_already_is_empty_and_says_what_it_took(path: str, client: TestClient) -> None:
    log_in("sessions__stream")
    first = client.get(path)
    assert re.fullmatch(r"cpu;dur=[\d.]+", first.headers["server-timing"])
    again = client.get(path, headers={"If-None-Match": first.headers["etag"]})
    if path == "/pipelines/sessions":
        # Its lag is another one each time.
        assert again.status_code in (200, 304)
    else:
        assert (again.status_code, again.content) == (304, b"")
        assert client.get(path, headers={"If-None-Match": '"older"'}).content == first.content


def test_a_line_is_read_again_only_after_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, read = write_project(tmp_path), list[str]()
    opened = DeltaTable.__init__

    def counted(self: DeltaTable, path: str, *rest: Any, **more: Any) -> None:
        read.append(Path(path).name)
        opened(self, path, *rest, **more)

    seconds = iter([0.0] * 40 + [1000.0] * 10)
    summaries = Summaries(monotonic=lambda: next(seconds))
    monkeypatch.setattr(DeltaTable, "__init__", counted)
    (first,) = summaries.of([(config, "sessions")])
    assert "state" in read
    read.clear()
    assert summaries.of([(config, "sessions")]) == [first]
    assert read == [], "nobody has committed"
    tables = PipelineTables(warehouse_of(load_config(config)), "sessions")
    head = read_snapshot(tables)
    assert head is not None
    manifest = head.manifest.model_copy(update={"epoch": 3, "parent": 2, "line": ((1, 3),)})
    commit_snapshot(tables, head.handle, manifest, arrow_schema(head.handle), [], {file["path"] for file in head.files})
    (later,) = summaries.of([(config, "sessions")])
    assert (later["epoch"], later["unpublished"]) == (2, 3)
    publish_table(tables, manifest, "epochs")
    (later,) = summaries.of([(config, "sessions")])
    assert (later["epoch"], later["unpublished"]) == (3, None)


def test_a_page_beside_the_reports_is_served_as_they_are(client: TestClient, tmp_path: Path) -> None:
    log_in("sessions__stream")
    missing = client.get("/pipelines/sessions/reports/advice.html")
    assert missing.status_code == 404
    assert "tidegate advise sessions --page" in missing.json()["detail"]
    artifacts_of(load_config(tmp_path / "tidegate.toml")).write(page_name("sessions", "advice.html"), b"<p>a curve")
    shown = client.get("/pipelines/sessions/reports/advice.html")
    assert (shown.status_code, shown.text) == (200, "<p>a curve")
    assert client.get("/pipelines/sessions").json()["pages"] == ["advice.html"]
    assert "default-src 'none'" in shown.headers["Content-Security-Policy"]
    assert client.get("/pipelines/sessions/reports/..%2Fadvice.html").status_code == 404


def test_what_an_operator_looks_for_is_there(client: TestClient) -> None:
    log_in("sessions__stream")
    shown = client.get("/pipelines/sessions").json()
    assert shown["driven_by"] == "stream"
    line = line_of(client)
    assert (line["late"], line["rejected"], line["epoch"], line["unpublished"]) == (1, 1, 2, None)
    assert line["watermark"] == shown["watermark"]
    assert [row["epoch"] for row in shown["epochs"]] == [2, 1]
    newest = shown["epochs"][0]
    assert (newest["seconds"], newest["events_in"], newest["events_a_second"]) == (1.0, 4, 4)
    assert shown["quality"]["checked_at"] is None


def test_acknowledged_windows_are_shown_with_their_reason(client: TestClient, tmp_path: Path) -> None:
    log_in("sessions__stream")
    assert client.get("/pipelines/sessions").json()["acknowledged"] == []
    tables = PipelineTables(warehouse_of(load_config(tmp_path / "tidegate.toml")), "sessions")
    head = read_snapshot(tables)
    assert head is not None
    quality_table.acknowledge(tables, head.manifest, "events = 4", "a sensor was doubled", 1, datetime.now(UTC))
    (shown,) = client.get("/pipelines/sessions").json()["acknowledged"]
    assert shown == {"epoch": 2, "where": "events = 4", "reason": "a sensor was doubled"}
    script = client.get("/").text
    assert all(f"row.{field}" in script for field in shown)
    assert "data.acknowledged" in script


def test_a_check_counts_for_its_own_timeline_and_names_its_epoch(client: TestClient, tmp_path: Path) -> None:
    log_in("sessions__stream")
    assert client.get("/pipelines/sessions").json()["quality"]["text"] == "timeline 1: never checked"
    assert run(["quality", "check", "sessions", "--config", str(tmp_path / "tidegate.toml")]) == 0
    assert client.get("/pipelines/sessions").json()["quality"]["text"] == "epoch 2: passed"
    tables = PipelineTables(warehouse_of(load_config(tmp_path / "tidegate.toml")), "sessions")
    (checked, *_) = map(QualityRow.of, quality_table.newest(tables).to_pylist())
    later = checked.checked_at + timedelta(hours=1)
    quality_table.append(tables, [replace(checked, check_id="later", epoch=1, checked_at=later, success=False)])
    assert client.get("/pipelines/sessions").json()["quality"]["text"] == "epoch 2: passed", "not the check made last"
    head = read_snapshot(tables)
    assert head is not None
    manifest = head.manifest.model_copy(update={"timeline": 2, "epoch": 3, "parent": 2, "line": ((1, 3),)})
    kept = {file["path"] for file in head.files}
    commit_snapshot(tables, head.handle, manifest, arrow_schema(head.handle), [], kept)
    assert client.get("/pipelines/sessions").json()["quality"]["text"] == "epoch 2: passed", "its results are not shown"
    publish_table(tables, manifest, "epochs")
    quality = client.get("/pipelines/sessions").json()["quality"]
    assert (quality["text"], quality["state"]) == ("timeline 2: never checked", "never checked")


def test_data_docs_are_handed_out_and_may_load_and_run_nothing(client: TestClient, tmp_path: Path) -> None:
    log_in("sessions__stream")
    assert client.get("/pipelines/sessions/checks/index.html").status_code == 404
    assert run(["quality", "check", "sessions", "--config", str(tmp_path / "tidegate.toml")]) == 0
    assert client.get("/pipelines/sessions").json()["has_docs"] is True
    listed = client.get("/pipelines/sessions/checks/index.html")
    assert listed.headers["content-security-policy"].startswith("default-src 'none'")
    (check,) = re.findall(r'href="(check-[^"]+)"', listed.text)
    assert "expect panes to be dense" in client.get(f"/pipelines/sessions/checks/{check}").text
    for page_ in ("checks.json", "lock", "..%2Findex.html"):
        assert client.get(f"/pipelines/sessions/checks/{page_}").status_code in (404, 422)


def test_the_page_runs_its_own_script_and_nothing_that_is_made_of_text(client: TestClient) -> None:
    log_in("sessions__stream")
    answer = client.get("/")
    assert "unsafe-eval" not in answer.headers["content-security-policy"]
    assert "Function(" not in answer.text + client.get("/links.js").text


@pytest.mark.parametrize("name", ["..%2F..%2Fetc", "a.b", "%20"])
def test_a_name_that_can_not_be_a_pipeline_is_refused(name: str, client: TestClient) -> None:
    log_in("sessions__stream")
    assert client.get(f"/pipelines/{name}").status_code in (403, 404, 422)


def test_a_report_may_load_and_run_nothing(client: TestClient, tmp_path: Path) -> None:
    log_in("sessions__stream")
    file = tmp_path / ".work" / "reports" / "sessions" / "epoch-000002.html"
    file.parent.mkdir(parents=True)
    file.write_text("<!doctype html>a report")
    answer = client.get("/pipelines/sessions/reports/2")
    assert "a report" in answer.text
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    assert client.get("/pipelines/sessions/reports/1").status_code == 404


def test_a_store_that_does_not_answer_is_no_error_of_the_page(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*place: object) -> None:
        raise StoreFailed("can't read s3://lake/x: 503")

    monkeypatch.setattr(page, "stored_page", failing)
    log_in("sessions__stream")
    answer = client.get("/pipelines/sessions/reports/2")
    assert (answer.status_code, answer.json()["detail"]) == (503, "can't read s3://lake/x: 503")


def test_without_a_project_it_says_what_to_set(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_in("sessions__stream")
    monkeypatch.delenv("TIDEGATE_CONFIG")
    empty = tmp_path / "empty"
    empty.mkdir()
    (tmp_path / "tidegate.toml").unlink()
    monkeypatch.setattr(page.conf, "get", lambda section, name: str(empty))
    answer = client.get("/pipelines")
    assert answer.status_code == 503
    assert "TIDEGATE_CONFIG" in answer.json()["detail"]


def test_the_page_has_the_look_that_it_shares_with_the_data_docs(client: TestClient) -> None:
    log_in("sessions__stream")
    answer = client.get("/")
    assert answer.headers["content-type"].startswith("text/html")
    assert look() in answer.text


PATHS = (
    "/",
    "/links.js",
    "/pipelines",
    "/summaries?name=sessions",
    "/pipelines/sessions",
    "/pipelines/sessions/reports/2",
)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tidegate.toml of a project with one pipeline; no test changes it."""
    return write_project(tmp_path_factory.mktemp("project"))


@pytest.fixture
def manager(project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Airflow's simple auth manager, without a database of revoked tokens."""
    monkeypatch.setenv("TIDEGATE_CONFIG", str(project))
    monkeypatch.setenv(
        "AIRFLOW__API_AUTH__JWT_SECRET", "a secret of this test, long enough for any signature: 0123456789"
    )
    monkeypatch.setattr(page, "names_in_airflow", list)
    monkeypatch.setattr(page, "stream_in_airflow", lambda name: None)
    monkeypatch.setattr(page, "streams_in_airflow", lambda names: {})
    monkeypatch.setattr(RevokedToken, "is_revoked", lambda token: False)
    purge_cached_app()
    manager = create_auth_manager()
    type(manager)._get_token_validator.cache_clear()
    yield manager
    type(manager)._get_token_validator.cache_clear()
    purge_cached_app()


def client_of(manager: Any, role: str | None, teams: list[str] | None = None) -> TestClient:
    token = manager.generate_jwt(SimpleAuthManagerUser(username="ann", role=role, teams=teams))
    return TestClient(page.app, headers={"Authorization": f"Bearer {token}"})


@pytest.mark.parametrize(
    ("role", "reads", "restarts"),
    [("viewer", True, False), ("user", True, True), ("op", True, True), ("admin", True, True), (None, False, False)],
)
def test_each_role_sees_and_may_do_what_airflow_lets_it(
    role: str | None, reads: bool, restarts: bool, manager: Any
) -> None:
    client = client_of(manager, role)
    assert client.get("/pipelines").json() == (["sessions"] if reads else [])
    answer = client.get("/pipelines/sessions")
    assert answer.status_code == (200 if reads else 403)
    assert answer.json().get("may_restart", False) is restarts
    assert client.get("/pipelines/sessions/reports/2").status_code == (404 if reads else 403), "there is no report yet"
    assert client.get("/pipelines/sessions/checks/index.html").status_code == (404 if reads else 403)


@pytest.mark.parametrize("path", PATHS)
def test_a_token_that_is_not_valid_opens_nothing(path: str, manager: Any) -> None:
    assert TestClient(page.app).get(path).status_code == 401
    forged = manager.generate_jwt(SimpleAuthManagerUser(username="ann", role="admin"))[:-4] + "AAAA"
    assert TestClient(page.app, headers={"Authorization": f"Bearer {forged}"}).get(path).status_code == 403
    expired = manager.generate_jwt(SimpleAuthManagerUser(username="ann", role="admin"), expiration_time_in_seconds=-60)
    assert TestClient(page.app, headers={"Authorization": f"Bearer {expired}"}).get(path).status_code == 401


def test_a_user_of_another_team_sees_nothing(manager: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__MULTI_TEAM", "True")
    monkeypatch.setattr(DagModel, "get_team_name", lambda dag: {"sessions__stream": "blue"}.get(dag))
    assert client_of(manager, "user", ["blue"]).get("/pipelines").json() == ["sessions"]
    red = client_of(manager, "user", ["red"])
    assert red.get("/pipelines").json() == []
    assert red.get("/pipelines/sessions").status_code == 403


def test_the_page_has_no_request_that_changes_anything(manager: Any) -> None:
    """So another site has nothing to forge: users restart a stream in Airflow's own form."""
    methods = {method for route in page.app.routes for method in getattr(route, "methods", ())}
    assert methods <= {"GET", "HEAD"}
    admin = client_of(manager, "admin")
    for path in PATHS:
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            assert admin.request(method, path).status_code == 405


def test_every_answer_forbids_foreign_frames_forms_and_guesses(manager: Any) -> None:
    answer = client_of(manager, "viewer").get("/")
    policy = answer.headers["content-security-policy"]
    for rule in ("default-src 'none'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'self'", "sha256-"):
        assert rule in policy
    assert "unsafe-inline" not in policy.partition("script-src")[2]
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_an_error_on_the_page_shows_no_secret(manager: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tidegate.pipelines.errors import StoreFailed
    from tidegate.pipelines.observe.inspect import overview

    def fail(*ignored: Any) -> Any:
        raise StoreFailed("the store says: SECRET-of-the-store is not valid")

    remember({"aws_secret_access_key": "SECRET-of-the-store"})
    monkeypatch.setattr(overview, "_read", fail)
    told = client_of(manager, "viewer").get("/pipelines/sessions").json()["error"]
    assert told == "the store says: *** is not valid"


ROOT = Path(__file__).parent.parent.parent
BUDGET_SECONDS = 0.5

PARSE = """
import json, sys, time
import airflow.sdk
from airflow.sdk import DAG, Asset, BaseOperator, BaseSensorOperator, Param, CronDataIntervalTimetable
began = time.process_time()
import runpy
found = runpy.run_path(sys.argv[1])
seconds = time.process_time() - began
tops = sorted({".".join(name.split(".")[: 2 if name.startswith("tidegate.") else 1]) for name in sys.modules})
print(json.dumps({"seconds": seconds, "dags": sorted(n for n, v in found.items() if isinstance(v, DAG)), "tops": tops}))
"""


def parse() -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", PARSE, str(ROOT / "dags" / "tidegate_dags.py")],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    parsed: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return parsed


def test_parsing_the_dag_folder_is_cheap_and_imports_no_engine() -> None:
    parsed = parse()
    for _ in range(2):
        # Other processes share the machine, so several attempts are allowed.
        parsed = parsed if parsed["seconds"] < BUDGET_SECONDS else parse()  # type: ignore[operator]
    assert parsed["seconds"] < BUDGET_SECONDS  # type: ignore[operator]
    assert not {"pyspark", "tidegate.windowing", "great_expectations", "deltalake", "pandas"} & set(parsed["tops"])  # type: ignore[call-overload]
    assert {"aircraft_duty__backfill", "aircraft_duty__stream", "aircraft_duty__quality"} <= set(parsed["dags"])  # type: ignore[call-overload]
