"""Fixture of the tests of commands: a project."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.pipelines.cli.project import Project


@pytest.fixture
def project(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project without any epoch yet; its module is forgotten afterwards."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "of_the_project", raising=False)
    return Project.make(tmp_path, capsys)
