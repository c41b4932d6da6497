"""The pipeline whose epochs the recovery tests run by hand, and the stream that most of them disturb."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipelines.by_hand import ByHand
from tests.recovery.arrivals import Runs


@pytest.fixture
def by_hand(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> ByHand:
    return ByHand(tmp_path / "lake", templates=tmp_path_factory.getbasetemp() / "templates")


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """The stream at three points. Tests copy it."""
    return Runs.make(tmp_path_factory.mktemp("runs"))
