"""Fixtures of the tests of pipelines: a pipeline whose epochs are made by hand, and a lake without a JVM."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lake import Lake
from tests.pipelines.by_hand import ByHand


@pytest.fixture
def by_hand(tmp_path: Path) -> ByHand:
    """Sessions of half an hour, no epoch yet."""
    return ByHand(tmp_path)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """A lake whose streams run without a JVM."""
    return Lake(tmp_path)
