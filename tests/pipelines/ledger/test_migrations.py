"""Formats are a ladder: older ones are converted, newer ones are refused by naming two versions."""

from __future__ import annotations

from typing import Any

import pytest
from deltalake import DeltaTable

from tests.lake import at
from tests.pipelines.by_hand import ByHand
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.ledger.migrations import (
    FORMAT,
    FORMAT_PROPERTY,
    MIGRATIONS,
    VERSION_PROPERTY,
    Migration,
    converted,
    library_version,
)
from tidegate.pipelines.ledger.tables.pipeline_tables import ALL


def test_the_number_of_the_format_is_the_length_of_the_ladder() -> None:
    assert len(MIGRATIONS) == FORMAT
    assert MIGRATIONS[0].convert is None
    assert all(migration.convert for migration in MIGRATIONS[1:])


def test_a_manifest_of_an_older_format_goes_through_each_later_step() -> None:
    def renamed(old: str, new: str) -> Migration:
        return Migration("9.0.0", lambda fields: {**fields, new: fields[old]})

    ladder = [*MIGRATIONS[:1], renamed("a", "b"), renamed("b", "c")]
    assert converted({"format": 1, "a": 7}, ladder) == {"format": 3, "a": 7, "b": 7, "c": 7}
    assert converted({"format": 2, "b": 8}, ladder) == {"format": 3, "b": 8, "c": 8}
    assert converted({"format": 3, "c": 9}, ladder) == {"format": 3, "c": 9}


def newer(**fields: Any) -> dict[str, Any]:
    return {"format": FORMAT + 1, "library_version": "99.1.0", "unknown": 1, **fields}


def test_a_manifest_of_a_newer_format_is_refused_by_two_versions() -> None:
    with pytest.raises(Refused, match=rf"has format {FORMAT + 1}, written by tidegate 99\.1\.0, but this is") as raised:
        converted(newer())
    assert f"but this is tidegate {library_version()}, which reads formats up to {FORMAT}" in str(raised.value)
    assert "install tidegate 99.1.0 or a newer version, or restore an earlier snapshot" in str(raised.value)


def test_another_build_of_the_same_version_says_so() -> None:
    """Builds between two releases share their version."""
    with pytest.raises(Refused, match=r"but this is an older build of .*: install the newest build"):
        converted(newer(library_version=library_version()))


@pytest.mark.parametrize("old", [{"format_version": 1, "library_version": "0.2.0"}, {"library_version": "0.1.0"}])
def test_a_manifest_from_before_0_3_is_refused_with_the_remedy(old: dict[str, Any]) -> None:
    writer = old["library_version"]
    with pytest.raises(
        Refused, match=rf"written by tidegate {writer}, and tidegate .* reads tables of 0\.3\.0 and later"
    ):
        converted(old)


def test_every_table_names_its_format_and_the_version_that_created_it(by_hand: ByHand) -> None:
    by_hand.epoch(("ann", at("10:00"), 1), watermark=at("10:00"))
    for table in ALL:
        properties = by_hand.tables.open(table).metadata().configuration
        assert (properties[FORMAT_PROPERTY], properties[VERSION_PROPERTY]) == (str(FORMAT), library_version()), table
    assert by_hand.head().manifest.format == FORMAT


@pytest.mark.parametrize("table", ALL)
def test_a_table_of_a_newer_format_is_refused_by_two_versions(by_hand: ByHand, table: str) -> None:
    by_hand.epoch(("ann", at("10:00"), 1), watermark=at("10:00"))
    later = {FORMAT_PROPERTY: str(FORMAT + 1), VERSION_PROPERTY: "99.1.0"}
    DeltaTable(by_hand.tables.path(table)).alter.set_table_properties(later, raise_if_not_exists=False)
    with pytest.raises(
        Refused, match=rf"{table} has format {FORMAT + 1}, written by tidegate 99\.1\.0, but this is tidegate "
    ):
        by_hand.tables.open(table)


def test_a_snapshot_of_a_newer_format_is_refused(by_hand: ByHand) -> None:
    text = by_hand.epoch(("ann", at("10:00"), 1), watermark=at("10:00")).model_dump_json()
    later = text.replace(f'"format":{FORMAT}', f'"format":{FORMAT + 1}').replace(library_version(), "99.1.0")
    with pytest.raises(Refused, match=r"written by tidegate 99\.1\.0, but this is tidegate"):
        Manifest.parse(later)
