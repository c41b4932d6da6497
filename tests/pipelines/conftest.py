"""What the tests of pipelines share: a pipeline whose epochs are made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipelines.by_hand import ByHand


@pytest.fixture
def by_hand(tmp_path: Path) -> ByHand:
    """Sessions of half an hour, no epoch yet."""
    return ByHand(tmp_path)
