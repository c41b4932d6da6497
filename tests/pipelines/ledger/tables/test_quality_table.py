"""Table quality: the newest check is found without reading everything, and old outcomes are removed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.key_search import texts
from tests.lake import at
from tests.pipelines.by_hand import ByHand
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.tables import quality
from tidegate.pipelines.ledger.tables.quality import QualityRow, forget_examples
from tidegate.pipelines.storage.warehouse import Warehouse, active_files
from tidegate.windowing.time import to_millis

FIRST = at("00:00")


def check(by_hand: ByHand, number: int, epoch: int | None = None, success: bool = True, days: float = 0) -> None:
    """A check of two expectations, this many days after the first one, and further ahead if the clock is wrong."""
    moment = FIRST + timedelta(days=number + days)
    rows = [
        QualityRow(
            f"check-{number}", moment, 1, epoch or number, "final", kind, "", "critical", success, "seen", 1, 1, 1
        )
        for kind in ("one", "other")
    ]
    quality.append(by_hand.tables, rows)


def tidied(by_hand: ByHand, days: int) -> bool:
    """Remove the checks older than this many days after the first one; return True if any were removed."""
    return quality.tidy(by_hand.tables, to_millis(FIRST + timedelta(days=days)))


def checks(by_hand: ByHand) -> list[str]:
    return sorted(set(quality.read(by_hand.tables)["check_id"].to_pylist()), key=lambda name: int(name[6:]))


def test_many_checks_are_put_in_one_file_and_old_ones_go(by_hand: ByHand) -> None:
    for number in range(1, 20):
        check(by_hand, number)
        assert not tidied(by_hand, days=15)
    check(by_hand, 20)
    assert tidied(by_hand, days=15)
    assert checks(by_hand) == [f"check-{number}" for number in range(15, 21)]
    assert len(active_files(by_hand.tables.open(quality.NAME))) == 1
    assert quality.newest_passed(by_hand.tables, range(21)) == 20


def test_the_newest_check_and_the_newest_that_passed_stay(by_hand: ByHand) -> None:
    for number in range(1, 21):
        check(by_hand, number, success=number == 3)
    assert tidied(by_hand, days=400)
    assert checks(by_hand) == ["check-3", "check-20"]
    assert quality.newest_passed(by_hand.tables, range(21)) == 3
    assert quality.state_of(quality.newest(by_hand.tables)) == "failed"


def over_another(monkeypatch: pytest.MonkeyPatch, other: Callable[[], object]) -> None:
    """Make the next commit hang until another command has ended."""
    known, hung = quality.commit, list[bool]()

    def overtaken(*arguments: Any) -> None:
        if not hung:
            hung.append(True)
            other()
        known(*arguments)

    monkeypatch.setattr(quality, "commit", overtaken)


def test_of_two_that_tidy_at_once_the_later_begins_anew(by_hand: ByHand, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(1, 21):
        check(by_hand, number)
    over_another(monkeypatch, lambda: tidied(by_hand, days=10))
    assert tidied(by_hand, days=15)
    assert checks(by_hand) == [f"check-{number}" for number in range(15, 21)]


def test_who_hangs_while_it_tidies_loses_nothing_to_an_erasure_that_changes_no_row(
    by_hand: ByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The erasure removes files that no version lists, such as one that is not committed yet."""
    for number in range(1, 21):
        check(by_hand, number)
    forget_examples(by_hand.tables, [texts("ann")])
    over_another(monkeypatch, lambda: forget_examples(by_hand.tables, [texts("ann")]))
    assert tidied(by_hand, days=0)
    assert checks(by_hand) == [f"check-{number}" for number in range(1, 21)]


def test_a_damaged_log_is_refused_until_the_table_is_moved_away(
    by_hand: ByHand,
) -> None:
    by_hand.epoch(("ann", at("08:00"), 1), watermark=at("08:00"))
    for number in (1, 2):
        check(by_hand, number)
    entry = max(Path(by_hand.tables.path(quality.NAME), "_delta_log").glob("*.json"))
    entry.write_bytes(entry.read_bytes()[:40])
    for read in (quality.read, quality.newest, lambda tables: quality.newest_passed(tables, [1, 2])):
        with pytest.raises(Refused, match=r"quality can't be opened.*Move the folder of table quality away"):
            read(by_hand.tables)
    with pytest.raises(Refused, match="Move the folder of table quality away"):
        check(by_hand, 3)
    Path(by_hand.tables.path(quality.NAME)).rename(by_hand.folder / "away")
    check(by_hand, 3)
    assert checks(by_hand) == ["check-3"]


def test_the_newest_check_is_read_from_one_file(by_hand: ByHand, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (1, 2, 3, 4):
        check(by_hand, number, epoch=2 if number == 2 else 9)
    read: list[str] = []
    known = Warehouse.read_files

    def reading(warehouse: Warehouse, path: str, names: list[str], *arguments: object, **named: object) -> object:
        read.extend(names)
        return known(warehouse, path, names, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Warehouse, "read_files", reading)
    assert quality.newest(by_hand.tables)["check_id"].to_pylist() == ["check-4", "check-4"]
    assert len(read) == 1
    assert quality.newest(by_hand.tables, epoch=2)["check_id"].to_pylist() == ["check-2", "check-2"]
    assert len(read) == 2
    assert len(quality.newest(by_hand.tables, epoch=5)) == 0


@pytest.mark.long
@pytest.mark.parametrize("days", [-400, 400])
def test_a_check_whose_clock_was_wrong_is_as_new_as_its_commit(by_hand: ByHand, days: int) -> None:
    for number in range(1, 31):
        check(by_hand, number, epoch=9, success=number not in (1, 8), days=days if number in (1, 8) else 0)
        assert quality.newest(by_hand.tables)["check_id"].to_pylist() == [f"check-{number}"] * 2
        assert quality.newest(by_hand.tables, epoch=9)["check_id"].to_pylist() == [f"check-{number}"] * 2
        assert quality.newest_passed(by_hand.tables, [9]) == (None if number in (1, 8) else 9)
        tidied(by_hand, days=20)
    assert "check-30" in checks(by_hand)


def test_checks_of_an_older_tidegate_are_ordered_by_their_clocks(by_hand: ByHand) -> None:
    schema = quality.SCHEMA.remove(quality.SCHEMA.get_field_index("number"))
    with pytest.MonkeyPatch.context() as older:
        older.setattr(quality, "SCHEMA", schema)
        for number in (2, 1):
            check(by_hand, number)
    assert "number" not in quality.read(by_hand.tables).column_names
    assert quality.newest(by_hand.tables)["check_id"].to_pylist() == ["check-2"] * 2
    check(by_hand, 0)
    assert quality.newest(by_hand.tables)["check_id"].to_pylist() == ["check-0"] * 2
