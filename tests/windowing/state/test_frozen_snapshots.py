"""Snapshots that were once taken are restored by this code, with the results that they then had."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.windowing.state.snapshots import SCENARIOS, after, before, read
from tidegate.windowing.state.migration import StateFormat
from tidegate.windowing.state.rows import REST

FILES = sorted(Path(__file__).parent.glob("version_*/*.parquet"))


@pytest.mark.filterwarnings("ignore::tidegate.windowing.errors.UnboundedStateWarning")
@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name} {path.stem}")
@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_frozen_snapshot_goes_on_as_it_did(path: Path, parallelism: int) -> None:
    run = SCENARIOS[path.stem]()
    run.restore(read(path), parallelism)
    assert after(run, path.stem) == path.with_suffix(".txt").read_text(encoding="utf-8").splitlines()


@pytest.mark.filterwarnings("ignore::tidegate.windowing.errors.UnboundedStateWarning")
@pytest.mark.parametrize("name", SCENARIOS)
def test_the_same_state_is_still_written_as_the_same_rows(name: str) -> None:
    frozen = read(Path(__file__).parent / "version_1" / f"{name}.parquet")
    taken = before(name).snapshot()
    order = [(column, "ascending") for column in ("key_group", "namespace", "side", "window_start", "window_end")]
    # Columns may be added, and those that were frozen hold what they held.
    added = set(taken.rows.column_names) - set(frozen.rows.column_names)
    assert all(column.startswith(REST) for column in added)
    assert taken.rows.drop_columns(sorted(added)).sort_by(order).equals(frozen.rows.sort_by(order))
    contents = {column: kind for column, kind in taken.format.contents.items() if column not in added}
    assert replace(taken.format, contents=contents) == frozen.format


def test_every_scenario_has_a_frozen_snapshot() -> None:
    assert {path.stem for path in FILES} == set(SCENARIOS)


def test_a_format_says_the_same_after_json() -> None:
    for path in FILES:
        found = read(path).format
        assert StateFormat.from_json(found.to_json()) == found
        assert StateFormat.from_json(found.to_json()).fingerprint == found.fingerprint
