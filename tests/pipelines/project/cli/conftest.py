"""Fixtures of the tests of commands: a project, and one whose streams run without a JVM."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipelines.project.cli.project import Project


@pytest.fixture
def project(tmp_path: Path, capsys: pytest.CaptureFixture[str], tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project without any epoch yet."""
    return Project.make(tmp_path, capsys, tmp_path_factory.getbasetemp() / "templates")


@pytest.fixture
def project_without_jvm(project: Project, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """The project, whose streams run without a JVM; signals are the test's own again afterwards."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield project
    for number, handler in before.items():
        signal.signal(number, handler)
