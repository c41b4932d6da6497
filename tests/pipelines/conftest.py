"""Fixtures of the tests of pipelines: a pipeline whose epochs are made by hand, and a lake without a JVM."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipelines.by_hand import ByHand


@pytest.fixture
def by_hand(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> ByHand:
    """Sessions of half an hour, no epoch yet."""
    return ByHand(tmp_path, templates=tmp_path_factory.getbasetemp() / "templates")
