"""Each check looks for every file that a table lists, and `--all` reads each of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.expectations.broken import broken_by_rules
from tests.expectations.quality_lake import session_lake
from tests.expectations.test_failed_expectation import checked, project
from tests.expectations.test_own_suite import suite_of
from tests.lake import at
from tests.pipelines.by_hand import ByHand
from tidegate.expectations.pinned import Pinned, pin
from tidegate.expectations.run import run_suites
from tidegate.expectations.suites import suites
from tidegate.pipelines.ledger.tables.pipeline_tables import ALL
from tidegate.pipelines.storage.artifacts import ArtifactsInFolder
from tidegate.pipelines.storage.warehouse import Warehouse, active_files

FILES = ("files", "expect_files_to_keep_their_rows")


def lived(folder: Path) -> ByHand:
    """A week of sessions. Each epoch is checked afterwards, so that the next check does not read its files."""
    hand = ByHand(folder)
    for day in range(8):
        hand.epoch(("ann", at("10:00", day), day), watermark=at("20:00", day))
        pinned = pin(hand.tables, hand.pipeline)
        assert run_suites(suites(pinned), pinned, hand.tables, ArtifactsInFolder(folder / "docs")).state == "passed"
    hand.epoch(("ann", at("10:00", 8), 8), watermark=at("20:00", 8))
    return hand


def oldest(hand: ByHand) -> Path:
    files = [file for file in active_files(hand.tables.open("results")) if file["num_records"]]
    return Path(hand.tables.path("results"), min(files, key=lambda file: int(file["max.epoch"]))["path"])


def flip(path: Path) -> None:
    """Change bytes in the middle of the data without changing the size."""
    content = bytearray(path.read_bytes())
    content[8:12] = bytes(each ^ 0xFF for each in content[8:12])
    path.write_bytes(content)


def check(hand: ByHand, everything: bool = False) -> Pinned:
    return pin(hand.tables, hand.pipeline, everything=everything)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


@pytest.mark.long
@pytest.mark.parametrize(("harm", "by"), [(Path.unlink, "the file is missing"), (cut, ""), (flip, None)])
def test_an_old_file_that_is_gone_or_cut_is_found_by_the_next_check_and_flipped_bytes_by_a_full_one(
    tmp_path: Path, harm: Callable[[Path], None], by: str | None
) -> None:
    hand = lived(tmp_path)
    assert check(hand).scope.proof is not None, "the check does not read that file"
    assert (check(hand).fresh_windows, check(hand).since) == (1, 8)
    assert (check(hand, everything=True).fresh_windows, check(hand, everything=True).since) == (9, None)
    assert broken_by_rules(check(hand)) == broken_by_rules(check(hand, everything=True)) == set()
    path = oldest(hand)
    harm(path)
    assert (FILES in broken_by_rules(check(hand))) == (by is not None)
    pinned = check(hand, everything=True)
    assert FILES in broken_by_rules(pinned)
    named = pinned.files[pinned.files["fault"] == "unreadable"]
    assert path.name in named["file"].tolist()
    assert not by or named["by"].tolist() == [by]


def test_files_are_looked_for_in_one_listing_of_each_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hand = ByHand(tmp_path)
    for day in range(3):
        hand.epoch(("ann", at("10:00", day), day), watermark=at("20:00", day))
    listed: list[str] = []
    known = Warehouse.names

    def names(warehouse: Warehouse, path: str) -> dict[str, int]:
        listed.append(Path(path).name)
        return known(warehouse, path)

    monkeypatch.setattr(Warehouse, "names", names)
    check(hand)
    assert sorted(name for name in listed if name != "_delta_log") == sorted(ALL)


def test_the_command_names_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tables = project(session_lake(), tmp_path, suite_of("gxe.ExpectColumnToExist(column='events')"))
    assert checked(tmp_path, "--all", pipeline="sessions") == 0
    (file,) = active_files(tables.open("results"))
    flip(Path(tables.path("results"), file["path"]))
    capsys.readouterr()
    assert checked(tmp_path, "--all", "--json", pipeline="sessions") == 5
    assert file["path"] in json.loads(capsys.readouterr().out)["message"]


def test_a_damaged_list_of_checks_begins_again(tmp_path: Path) -> None:
    project(session_lake(), tmp_path, suite_of("gxe.ExpectColumnToExist(column='events')"))
    assert checked(tmp_path, "--all", pipeline="sessions") == 0
    (listed,) = tmp_path.rglob("checks.json")
    listed.write_bytes(b"\xff" + listed.read_bytes()[:20])
    assert checked(tmp_path, "--all", pipeline="sessions") == 0
    assert len(json.loads(listed.read_bytes())) == 1
