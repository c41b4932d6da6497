"""Acknowledged windows pass the pipeline's own suite until their result changes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from tests.expectations.quality_lake import hour_lake
from tests.expectations.test_failed_expectation import checked, project
from tests.expectations.test_own_suite import suite_of
from tests.key_search import files_with, texts
from tests.lake import at
from tests.pipelines.by_hand import ByHand
from tidegate.expectations.pinned import pin
from tidegate.pipelines.ledger.tables import quality
from tidegate.pipelines.ledger.tables.keys import texts_of_key
from tidegate.pipelines.ledger.tables.quality import QualityRow, forget_examples
from tidegate.pipelines.project.cli import run


@pytest.fixture
def by_hand(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> ByHand:
    by_hand = ByHand(tmp_path, templates=tmp_path_factory.getbasetemp() / "templates")
    by_hand.hours(10)
    return by_hand


FEW = suite_of("gxe.ExpectColumnValuesToBeBetween(column='events', max_value=3)")


def acknowledged(folder: Path, where: str, *options: str) -> int:
    config = ["--config", str(folder / "tidegate.toml")]
    return run(
        ["quality", "acknowledge", "hours", "--where", where, "--reason", "a sensor was doubled", *config, *options]
    )


def test_acknowledged_windows_pass_and_the_reason_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tables = project(hour_lake(), tmp_path, FEW)
    assert checked(tmp_path) == 5
    capsys.readouterr()
    assert acknowledged(tmp_path, "\"user\" = 'a' AND events = 4", "--json") == 0
    assert json.loads(capsys.readouterr().out)["windows"] == 1
    assert quality.state_of(quality.newest(tables)) == "failed", "an acknowledgement is no check"
    assert checked(tmp_path, "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["quality"], answer["acknowledged"][0]["reason"]) == ("passed", "a sensor was doubled")
    assert answer["checks"][0]["rows"] == 2, "the other windows are checked"
    pages = (tmp_path / ".work" / "quality" / "hours").glob("check-*.html")
    assert any("a sensor was doubled" in page.read_text() for page in pages)


def test_a_window_with_another_result_is_checked_again(tmp_path: Path) -> None:
    lake = hour_lake()
    tables = project(lake, tmp_path, FEW)
    assert acknowledged(tmp_path, "events > 0") == 0
    found = pin(tables, lake.pipeline)
    assert len(found.fresh) == 0
    earlier = tuple((epoch - 1, where, reason) for epoch, where, reason in found.acknowledged)
    fresh = replace(found, acknowledged=earlier).fresh
    assert fresh["epoch"].tolist() == [2], "what a later epoch wrote was not acknowledged"


@pytest.mark.first(4)
@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("events > 1000", "none of the 3 final windows"),
        ("evnts > 1", "evnts"),
        ("events >", "can't be"),
        ("random() < 2", "'random' may give a different result in the next check"),
        ("window_start < now() - INTERVAL '1 hour'", "'now' may give a different result"),
        ("window_start < Current_Timestamp", "'Current_Timestamp' may give a different result"),
        ("events = (SELECT max(events) FROM batch)", "'SELECT' may give a different result"),
        ("\"user\" = 'now()' OR \"user\" = 'it''s random()'", "none of the 3 final windows"),
    ],
)
def test_a_condition_that_acknowledges_nothing_is_refused(
    where: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = project(hour_lake(), tmp_path, FEW)
    assert acknowledged(tmp_path, where) == 2
    assert said in capsys.readouterr().err
    assert quality.acknowledged(tables) == []


def test_an_acknowledgement_without_a_reason_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project(hour_lake(), tmp_path, FEW)
    where = ["--where", "events > 3", "--reason", " ", "--config", str(tmp_path / "tidegate.toml")]
    assert run(["quality", "acknowledge", "hours", *where]) == 2
    assert "--reason is empty" in capsys.readouterr().err


@pytest.mark.long
def test_a_window_that_only_a_full_check_looks_at_can_be_acknowledged(tmp_path: Path) -> None:
    lake = hour_lake()
    tables = project(lake, tmp_path, suite_of("gxe.ExpectColumnValuesToBeBetween(column='events', max_value=100)"))
    assert checked(tmp_path) == 0
    passed = [QualityRow.of(row) for row in quality.newest(tables).to_pylist()]
    quality.append(tables, [replace(row, check_id="of the epoch before", epoch=1, proof=None) for row in passed])
    (tmp_path / "stricter.py").write_text(FEW)
    file = tmp_path / "tidegate.toml"
    file.write_text(re.sub('suites.final = ".*"', 'suites.final = "stricter:suite"', file.read_text()))
    old = pin(tables, lake.pipeline).fresh
    assert not (old["events"] == 4).any(), "the next check does not look at it"
    assert checked(tmp_path, "--all") == 5
    assert acknowledged(tmp_path, "events = 4") == 0
    assert checked(tmp_path, "--all") == 0


def test_an_acknowledgement_that_names_a_key_is_forgotten_with_it(tmp_path: Path) -> None:
    tables = project(hour_lake(), tmp_path, FEW)
    assert acknowledged(tmp_path, "\"user\" = 'a'") == 0
    forget_examples(tables, [texts("a")])
    assert quality.acknowledged(tables) == []


@pytest.mark.parametrize(
    ("key", "stays"), [("O'Brien", False), ('a"b', False), ("Brie", True), ("", True), ("z", True)]
)
def test_a_forgotten_key_voids_the_acknowledgements_that_name_it_and_no_other(
    by_hand: ByHand, key: str, stays: bool
) -> None:
    where = """"user" IN ('O''Brien', 'a"b') AND value > 1"""
    quality.acknowledge(by_hand.tables, by_hand.head().manifest, where, "known, such as others", 1, at("10:00"))
    forget_examples(by_hand.tables, [texts(key)])
    assert quality.acknowledged(by_hand.tables) == ([(1, where, "known, such as others")] if stays else [])
    assert stays or not files_with("Brien", Path(by_hand.tables.path(quality.NAME)))


def test_a_forgotten_number_voids_what_names_it_and_not_what_has_its_digits(by_hand: ByHand) -> None:
    for where in ("user = 1", "user = 12 AND window_start >= '2011-11-11'"):
        quality.acknowledge(by_hand.tables, by_hand.head().manifest, where, "known", 1, at("10:00"))
    forget_examples(by_hand.tables, [texts_of_key((pa.scalar(1),), ("1",))])
    assert [where for _, where, _ in quality.acknowledged(by_hand.tables)] == [
        "user = 12 AND window_start >= '2011-11-11'"
    ]
