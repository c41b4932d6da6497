from __future__ import annotations

import pytest

from tests.lake import at, hourly_pipeline
from tests.pipelines.by_hand import ByHand
from tidegate.pipelines.epoch import plan
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.manifest import PartitionWatermark


def test_a_column_of_too_many_source_partitions_is_refused_before_anything_is_computed(
    by_hand: ByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "MOST_PARTITIONS", 3)
    by_hand.pipeline = hourly_pipeline(watermark_by="user")
    four = {f"user{number}": PartitionWatermark(watermark=0) for number in range(4)}
    told = r"makes 4 source partitions, but a pipeline may have at most 3: .* remove watermark_by"
    with pytest.raises(Refused, match=told):
        by_hand.planned([], at("10:00"), partitions=four)
    by_hand.planned([], at("10:00"), partitions=dict(list(four.items())[:3]))
