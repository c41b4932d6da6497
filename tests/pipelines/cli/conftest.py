"""Fixtures of the tests of commands: a project, and one whose streams run without a JVM."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipelines.cli.project import Project
from tests.recovery.without_spark import NoSpark, standing_in
from tidegate.pipelines.spark import session


@pytest.fixture
def project(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Project:
    """A project without any epoch yet."""
    return Project.make(tmp_path, capsys)


@pytest.fixture
def project_without_jvm(project: Project, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """The project, whose streams run without a JVM; signals are the test's own again afterwards."""
    monkeypatch.setattr(session, "start_session", lambda config, name: NoSpark())
    monkeypatch.setattr(session, "stop_session", lambda session: None)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    with standing_in(NoSpark()):
        yield project
    for number, handler in before.items():
        signal.signal(number, handler)
