"""Event time that follows the elements of a slice, as a backfill in event order has it."""

from __future__ import annotations

from tidegate.windowing.operators.protocol import KeyedOperator
from tidegate.windowing.time import Millis


def advance(operator: KeyedOperator, watermark: Millis) -> None:
    """Move event time on to `watermark`, every due timer at its own time.

    So the watermark of a pane does not depend on which other keys share its shard.
    """
    operator.end_commit()
    while (due := operator.next_event_time) is not None and due <= watermark:
        operator.process_watermark(due)
    operator.process_watermark(watermark)
