"""Who may see what on the page in Airflow: decided by Airflow's own permissions to read the pipeline's DAGs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.api_fastapi.core_api.security import get_user
from fastapi.testclient import TestClient

from pipelines.airflow import page
from tests.dags.project import write_project


class Manager:
    """An auth manager that lets a user read the DAGs that it names."""

    def is_authorized_dag(self, *, method: str, details: Any, user: Any) -> bool:
        return method == "GET" and details.id in user.dags


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    monkeypatch.setenv("TIDEGATE_CONFIG", str(write_project(tmp_path)))
    monkeypatch.setattr(page, "get_auth_manager", Manager)
    yield TestClient(page.app)
    page.app.dependency_overrides.clear()


def log_in(*dags: str) -> None:
    page.app.dependency_overrides[get_user] = lambda: SimpleNamespace(dags=dags)


def test_a_user_sees_the_pipelines_whose_dags_may_be_read(client: TestClient) -> None:
    log_in("sessions__stream")
    assert client.get("/pipelines").json() == ["sessions"]
    assert client.get("/pipelines/sessions").json()["epoch"] == 2
    log_in("other__stream")
    assert client.get("/pipelines").json() == []


@pytest.mark.parametrize("path", ["/pipelines/sessions", "/pipelines/sessions/reports/2", "/pipelines/nothing"])
def test_without_permission_nothing_is_told_not_even_what_there_is(path: str, client: TestClient) -> None:
    log_in("other__stream")
    assert client.get(path).status_code == 403


@pytest.mark.parametrize("path", ["/", "/pipelines", "/pipelines/sessions", "/pipelines/sessions/reports/2"])
def test_without_a_login_there_is_nothing(path: str, client: TestClient) -> None:
    assert client.get(path).status_code == 401


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
