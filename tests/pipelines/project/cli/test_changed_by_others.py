"""Other writers' changes of rows are refused and reported to readers, until the table is as it was before."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from deltalake import write_deltalake

from tests.expectations.broken import broken_by_rules
from tests.lake import at
from tests.pipelines.by_hand import ByHand
from tests.pipelines.project.cli.project import Project
from tests.recovery.hourly import NOW
from tidegate.expectations.pinned import pin
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.snapshots.forget import forget
from tidegate.pipelines.ledger.tables.compaction import compact
from tidegate.pipelines.ledger.tables.pipeline_tables import PUBLISHED
from tidegate.pipelines.storage.warehouse import active_files

pytestmark = pytest.mark.recovery

Step = Callable[[ByHand], object]
WAY = "`tidegate restore sessions --restart`"


def hour(number: int) -> Step:
    def epoch(by_hand: ByHand) -> None:
        row, late = ("ann", at(f"{number:02d}:00"), number), ("bob", at("00:30"), number)
        by_hand.epoch(row, late, watermark=at(f"{number:02d}:00"))

    return epoch


def deleted(by_hand: ByHand) -> None:
    by_hand.tables.open("results").delete("epoch = 2")


def updated(by_hand: ByHand) -> None:
    by_hand.tables.open("results").update(predicate="epoch = 2", updates={"total": "total + 1"})


def added(by_hand: ByHand) -> None:
    write_deltalake(by_hand.tables.path("results"), by_hand.rows("results")[:1], mode="append")


def late_deleted(by_hand: ByHand) -> None:
    by_hand.tables.open("late").delete("epoch = 2")


def optimized(by_hand: ByHand) -> None:
    by_hand.tables.open("results").optimize.compact()


def compacted(by_hand: ByHand) -> None:
    for table in PUBLISHED:
        compact(by_hand.tables, table)


def set_back(versions: int) -> Step:
    def restored(by_hand: ByHand) -> None:
        handle = by_hand.tables.open("results")
        handle.restore(handle.version() - versions)

    return restored


def contents(by_hand: ByHand) -> dict[str, list[str]]:
    """Return the rows of each table, except when and in which process they were written."""
    gone = {"started_at", "run_id", "phases", "timeline", "epoch", "parent", "kind", "emitted_at"}
    found = {}
    for name in PUBLISHED[:-1]:
        rows = by_hand.rows(name)
        found[name] = sorted(map(str, rows.drop_columns([*gone & {*rows.column_names}]).to_pylist()))
    return found


@pytest.fixture
def warned(caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
    """Return the warnings since the last call."""

    def texts() -> str:
        text = "\n".join(record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING)
        caplog.clear()
        return text

    return texts


def refused(by_hand: ByHand) -> None:
    """An epoch commits its state, and is not published on top of the change."""
    with pytest.raises(Refused, match="somebody else changed rows"):
        hour(11)(by_hand)


CHANGES = {
    "deleted": [deleted],
    "updated": [updated],
    "added, merged": [added, compacted],
    "late rows deleted": [late_deleted],
    "deleted, an epoch": [deleted, refused],
    "late rows deleted, an epoch, merged": [late_deleted, refused, compacted],
    "deleted, set back on it": [deleted, added, set_back(1)],
    "set back": [set_back(1)],
    "set back twice": [set_back(1), set_back(3)],
    "optimized, deleted, an epoch": [optimized, deleted, refused],
}


@pytest.mark.first(1)
@pytest.mark.parametrize("steps", CHANGES.values(), ids=CHANGES)
def test_a_change_is_refused_until_somebody_undoes_it(
    project: Project, steps: list[Step], warned: Callable[[], str]
) -> None:
    by_hand, untouched = project.by_hand, ByHand(project.folder / "untouched")
    for number in (8, 9, 10):
        hour(number)(by_hand)
    table = "late" if late_deleted in steps else "results"
    if steps[0] is optimized:
        optimized(by_hand)
    good = by_hand.tables.open(table).version()
    for step in steps[steps[0] is optimized :]:
        step(by_hand)
    warned()
    assert project.tidegate("results", "sessions")[0] == 0
    if table == "results":
        assert "tidegate did not make" in warned(), "who reads is told, too"
    project.says(3, WAY, "tables", "optimize", "sessions")
    project.says(3, WAY, "restore", "sessions", "latest")
    by_hand.tables.open(table).restore(good)
    assert project.tidegate("tables", "optimize", "sessions")[0] == 0
    for number in range(8, 11 + (refused in steps)):
        hour(number)(untouched)
    assert contents(by_hand) == contents(untouched)
    hour(13)(by_hand)
    hour(13)(untouched)
    assert contents(by_hand) == contents(untouched)
    assert broken_by_rules(pin(by_hand.tables, by_hand.pipeline)) == set()


def test_a_check_says_that_the_row_of_its_epoch_was_removed(project: Project) -> None:
    by_hand = project.by_hand
    for number in (8, 9):
        hour(number)(by_hand)
    by_hand.tables.open("epochs").delete("epoch = 2")
    project.says(3, "lacks the row of epoch 2, which was published", "quality", "check", "sessions")


def test_a_key_is_not_forgotten_while_rows_of_others_are_changed(project: Project) -> None:
    by_hand = project.by_hand
    for number in (8, 9, 10):
        hour(number)(by_hand)
    good = by_hand.tables.open("late").version()
    late_deleted(by_hand)
    with Lease(by_hand.tables, "forget", lambda: NOW), pytest.raises(Refused, match="Compute everything again"):
        forget(by_hand.tables, by_hand.pipeline, [["ann"]], NOW)
    by_hand.tables.open("late").restore(good)
    with Lease(by_hand.tables, "forget", lambda: NOW):
        forget(by_hand.tables, by_hand.pipeline, [["ann"]], NOW)
    for table in ("results", "late", "state"):
        assert "ann" not in by_hand.rows(table)["user"].to_pylist()
        assert not any("ann" in str(file) for file in active_files(by_hand.tables.open(table)))
