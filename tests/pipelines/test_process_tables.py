"""A process function's tables: restored at another parallelism, compared, saved, erased, explained by `why`, and
checked.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.lake import EVENTS, at, session_pipeline
from tests.pipelines.by_hand import ByHand
from tests.pipelines.quiet import Quiet, quiet_pipeline
from tidegate.expectations.pinned import pin
from tidegate.pipelines.ask.contents import checksums, compare
from tidegate.pipelines.definition import results
from tidegate.pipelines.definition.binding import bind
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.snapshots import compatibility
from tidegate.pipelines.ledger.snapshots.compatibility import check_restorable
from tidegate.pipelines.ledger.snapshots.forget import forget
from tidegate.pipelines.ledger.snapshots.head import require_snapshot, state_rows
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.ledger.snapshots.savepoint import create_savepoint, read_savepoint
from tidegate.pipelines.observe.report.run import read_run
from tidegate.windowing.state import ValueStateDescriptor
from tidegate.windowing.time import to_millis


@pytest.fixture(scope="module")
def two_epochs(tmp_path_factory: pytest.TempPathFactory) -> ByHand:
    """Both users are known, and ann had no input once."""
    made = ByHand(tmp_path_factory.mktemp("epochs"), quiet_pipeline())
    made.epoch(("ann", at("10:00"), 1), ("bob", at("10:05"), 2), watermark=at("10:01"))
    made.epoch(("ann", at("10:30"), 4), watermark=at("10:12"))
    return made


@pytest.fixture
def lake(two_epochs: ByHand, tmp_path: Path) -> ByHand:
    """A copy of them, for a test to change."""
    return replace(two_epochs, folder=shutil.copytree(two_epochs.folder, tmp_path, dirs_exist_ok=True))


def told(made: ByHand) -> list[tuple[Any, ...]]:
    rows = results.latest(made.rows("results"), ("user",)).to_pylist()
    return sorted((row["user"], row["event_time"], row["total"]) for row in rows)


def third(made: ByHand) -> list[tuple[Any, ...]]:
    made.epoch(("cyd", at("10:40"), 8), watermark=at("11:00"))
    return told(made)


def test_results_are_rows_with_the_time_of_what_put_them_out(lake: ByHand) -> None:
    assert told(lake) == [("ann", at("10:10"), 5)]
    assert lake.rows("results").schema.names == [
        "user", "event_time", "output", "timeline", "epoch", "emitted_at", "stale", "total",
    ]  # fmt: skip


@pytest.mark.first(2)
@pytest.mark.parametrize("parallelism", [1, 3, 5])
def test_a_restore_at_any_parallelism_goes_on_as_if_nothing_had_been(
    lake: ByHand, tmp_path: Path, parallelism: int
) -> None:
    twin = ByHand(tmp_path / "twin", quiet_pipeline())
    twin.epoch(("ann", at("10:00"), 1), ("bob", at("10:05"), 2), watermark=at("10:01"))
    twin.epoch(("ann", at("10:30"), 4), watermark=at("10:12"))
    expected = third(twin)
    lake.epoch(("bob", at("10:20"), 9), watermark=at("10:50"))
    before = require_snapshot(lake.tables, 2)
    restore(lake.tables, before, 0)
    lake.parallelism = parallelism
    assert checksums(state_rows(lake.warehouse, lake.head())) == checksums(state_rows(lake.warehouse, before))
    assert third(lake) == expected


def test_a_difference_names_the_keys_whose_state_and_timers_changed(lake: ByHand) -> None:
    first = require_snapshot(lake.tables, 1)
    found = compare(lake.warehouse, first, lake.head())
    assert (found.added, found.removed) == ([], [])
    (change,) = found.changed
    assert (change.after["user"], change.columns) == ("ann", ("user_state",))
    assert [(timer.row["user"], timer.at) for timer in found.timers_removed] == [("ann", to_millis(at("10:10")))]
    assert [(timer.row["user"], timer.at) for timer in found.timers_added] == [("ann", to_millis(at("10:40")))]


def test_a_savepoint_holds_state_and_timers(lake: ByHand) -> None:
    create_savepoint(lake.tables, lake.head(), "now", 0)
    saved = read_savepoint(lake.tables, "now")
    assert checksums(state_rows(lake.warehouse, saved)) == checksums(state_rows(lake.warehouse, lake.head()))


def test_a_forgotten_key_puts_out_nothing_any_more(lake: ByHand) -> None:
    with Lease(lake.tables, "forget", lambda: 0):
        forgotten = forget(lake.tables, lake.pipeline, [["ann"]], 0)
    assert (forgotten.rows["results"], forgotten.rows["state"]) == (1, 1)
    assert [user for user, *_ in third(lake)] == ["bob", "cyd"]


def test_checks_and_report_hold_for_what_has_no_windows(lake: ByHand) -> None:
    pinned = pin(lake.tables, lake.pipeline)
    assert pinned.shape is None
    assert sum(map(len, pinned.windows())) == pinned.fresh_windows == len(pinned.fresh) == 1
    assert (pinned.ledger["counted"] == pinned.ledger["found"]).all()
    assert read_run(lake.tables).total("on_time") == 3


class Renamed(Quiet):
    """The same with state that is stored as text."""

    total = ValueStateDescriptor("total", pa.string())


def test_a_state_of_another_type_is_told_before_a_run(lake: ByHand) -> None:
    other = quiet_pipeline(Renamed())
    (found,) = compatibility.compare(bind(other, EVENTS, EVENTS), lake.head().manifest).incompatibilities
    assert str(found) == "user state 'total' is int64 in the snapshot and string in the code"
    windows = replace(quiet_pipeline(), key=("value",))
    assert any(
        found.field == "key column 'value'"
        for found in compatibility.compare(bind(windows, EVENTS, EVENTS), lake.head().manifest).incompatibilities
    )


def test_windows_do_not_go_on_from_a_functions_state(lake: ByHand) -> None:
    sessions = bind(session_pipeline(), EVENTS, EVENTS)
    with pytest.raises(Refused, match="namespace is key in the snapshot and time_window in the code"):
        check_restorable(sessions, lake.head().manifest)
