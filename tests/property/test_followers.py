"""What follows the change feed of table `windows` has exactly its rows: other pipelines, and copies."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipelines.chain import NAMES, Chain, FeedCopy


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 40))])
def test_a_chain_follows_corrections_restores_and_erasure(tmp_path: Path, seed: int) -> None:
    chain = Chain(tmp_path, seed)
    chain.copies = {name: FeedCopy(chain.path(f"{name}/windows")) for name in NAMES[:2]}
    chain.live(5 if seed < 2 else 12)
