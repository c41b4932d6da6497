"""The page with Airflow's own log-in: each role of the simple auth manager, teams, and tokens that are not valid."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.api_fastapi.app import create_auth_manager, purge_cached_app
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.models.dag import DagModel
from airflow.models.revoked_token import RevokedToken
from fastapi.testclient import TestClient

from tests.dags.project import write_project
from tidegate.pipelines.airflow import page
from tidegate.pipelines.storage.credentials import remember

PATHS = ("/", "/links.js", "/pipelines", "/pipelines/sessions", "/pipelines/sessions/reports/2")


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
    """So another site has nothing to forge: whoever restarts a stream does it in Airflow's own form."""
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
