"""The check that windows can be corrected when the source changes: they must depend only on the set of elements."""

from __future__ import annotations

from collections.abc import Collection

from tidegate.windowing.compute import Compute, Join, Windows
from tidegate.windowing.watermarks import WatermarkStrategy


def order_seen_by(compute: Compute) -> str | None:
    """Return the part, in words, that makes results depend on more than the set of a window's elements, or None."""
    if isinstance(compute, Join):
        return "a join, whose state lacks the elements that a changed row was joined with"
    if not isinstance(compute, Windows):
        return "a process function, whose results can't be retracted"
    if compute.order_shown_by is not None:
        return compute.order_shown_by
    assigner = compute.assigner
    if assigner.forms_sessions or assigner.array_assignment is not None:
        return None
    return f"assigner {type(assigner).__name__}, whose windows may depend on more than a time"


def uncorrectable(
    compute: Compute, watermark: WatermarkStrategy, watermark_from: str, key: Collection[str], derived: Collection[str]
) -> str | None:
    """Return the reason why windows can't be corrected when rows of their source change; None if they can.

    Args:
        compute: the computation.
        watermark: strategy by which event time advances.
        watermark_from: rows whose times move the watermark.
        key: the key columns.
        derived: names of derived columns.
    """
    if (reason := order_seen_by(compute)) is not None:
        return reason
    assert isinstance(compute, Windows)
    if watermark.reads_events:
        return "a watermark strategy that reads every event in order"
    if watermark_from != "kept":
        return f"watermark_from = {watermark_from!r}"
    if of_key := [name for name in key if name in derived]:
        return f"key column {of_key[0]!r}, which is derived, so late rows don't have it"
    return None
