"""The pipeline whose epochs the tests of recovery make by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipelines.by_hand import ByHand


@pytest.fixture
def by_hand(tmp_path: Path) -> ByHand:
    return ByHand(tmp_path / "lake")
