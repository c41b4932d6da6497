from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tests.lake import EVENTS, at, session_pipeline
from tests.pipelines.by_hand import ByHand
from tidegate.pipelines.definition.binding import bind
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.snapshots.compatibility import check_restorable


def test_the_same_code_goes_on(by_hand: ByHand) -> None:
    manifest = by_hand.epoch(("ann", at("10:00"), 1), watermark=at("10:00"))
    check_restorable(bind(session_pipeline(), EVENTS, EVENTS), manifest)


@pytest.mark.parametrize(
    ("change", "field", "then", "now"),
    [
        ({"max_parallelism": 64}, "max_parallelism", 128, 64),
        ({"key": ("value",)}, "key column 'user'", "string", "absent"),
        ({"key": ("user", "value")}, "key column 'value'", "absent", "int64"),
    ],
)
def test_what_can_not_be_restored_is_refused_with_the_field_and_both_values(
    by_hand: ByHand, change: dict[str, Any], field: str, then: object, now: object
) -> None:
    manifest = by_hand.epoch(("ann", at("10:00"), 1), watermark=at("10:00"))
    with pytest.raises(Refused, match=rf"{field} is {then} in the snapshot and {now} in the code.*another name"):
        check_restorable(bind(session_pipeline(**change), EVENTS, EVENTS), manifest)


def test_a_widened_key_is_another_key_because_its_hashes_differ(by_hand: ByHand) -> None:
    manifest = by_hand.epoch(("ann", at("10:00"), 1), watermark=at("10:00"))
    narrow = manifest.schemas.model_copy(update={"key": {"user": "int32"}})
    widened = EVENTS.set(0, pa.field("user", pa.int64()))
    with pytest.raises(Refused, match="key column 'user' is int32 in the snapshot and int64 in the code"):
        check_restorable(bind(session_pipeline(), widened, widened), manifest.model_copy(update={"schemas": narrow}))
