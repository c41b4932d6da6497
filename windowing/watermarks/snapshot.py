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
    """Return a timestamp or duration of a snapshot.

    Raises:
        IncompatibleSnapshot: the field is missing, or is not an int.
    """
    value = snapshot.get(field)
    if isinstance(value, bool) or not isinstance(value, int):
        raise IncompatibleSnapshot(field, value, "an int of milliseconds", _WAY_OUT)
    return value


def optional_millis_in(snapshot: Mapping[str, Any], field: str) -> Millis | None:
    """Return a timestamp or duration of a snapshot, as `millis_in` does; None if the snapshot has None."""
    return None if field in snapshot and snapshot[field] is None else millis_in(snapshot, field)


def flag_in(snapshot: Mapping[str, Any], field: str) -> bool:
    """Return a boolean of a snapshot.

    Raises:
        IncompatibleSnapshot: the field is missing, or is not a boolean.
    """
    value = snapshot.get(field)
    if not isinstance(value, bool):
        raise IncompatibleSnapshot(field, value, "true or false", _WAY_OUT)
    return value


def part_of(snapshot: Mapping[str, Any], field: str) -> WatermarkSnapshot:
    """Return a nested snapshot.

    Raises:
        IncompatibleSnapshot: the field is missing, or is not a dict.
    """
    value = snapshot.get(field)
    if not isinstance(value, dict):
        raise IncompatibleSnapshot(field, value, "a nested snapshot", _WAY_OUT)
    return value
