"""Whatever is done to a pipeline, its tables hold what a computation from scratch gives, or a refusal names a way on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipelines.snapshots import line, recovery
from tests.recovery.walks import Walk

pytestmark = pytest.mark.recovery

SEED = int(os.environ.get("TIDEGATE_TEST_SEED", "1"))


@pytest.mark.parametrize("seed", range(SEED, SEED + 3))
def test_a_walk_ends_as_a_computation_from_scratch_does(tmp_path: Path, seed: int) -> None:
    Walk(tmp_path / "walk", seed).run(steps=12)
