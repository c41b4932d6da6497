"""Snapshots of watermark state: dicts of plain JSON values, which are stored in the manifest of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from tidegate.windowing.errors import IncompatibleSnapshot
from tidegate.windowing.time import Millis

WatermarkSnapshot: TypeAlias = dict[str, Any]
"""Dict from field names to numbers, booleans, text, None, and lists and dicts of these."""

_WAY_OUT = "Restore a snapshot of the same watermark strategy, or start without a snapshot"


def millis_in(snapshot: Mapping[str, Any], field: str) -> Millis:
    """Return a timestamp or duration of a snapshot."""
    millis: Millis = _value(snapshot, field, int, "an int of milliseconds")
    return millis


def optional_millis_in(snapshot: Mapping[str, Any], field: str) -> Millis | None:
    """Return a timestamp or duration of a snapshot, as `millis_in` does; None if the snapshot has None."""
    return None if field in snapshot and snapshot[field] is None else millis_in(snapshot, field)


def flag_in(snapshot: Mapping[str, Any], field: str) -> bool:
    """Return a boolean of a snapshot."""
    flag: bool = _value(snapshot, field, bool, "true or false")
    return flag


def part_of(snapshot: Mapping[str, Any], field: str) -> WatermarkSnapshot:
    """Return a nested snapshot."""
    part: WatermarkSnapshot = _value(snapshot, field, dict, "a nested snapshot")
    return part


def _value(snapshot: Mapping[str, Any], field: str, kind: type, wanted: str) -> Any:
    """Return a field; raise IncompatibleSnapshot if it is missing or of another type. True is not an int here."""
    value = snapshot.get(field)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise IncompatibleSnapshot(field, value, wanted, _WAY_OUT)
    return value
