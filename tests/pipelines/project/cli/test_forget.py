"""`tidegate forget`: other files than tables lose the key too, and copies that may still contain it are named."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from html import escape
from pathlib import Path

import pytest

from tests.key_search import files_with
from tests.lake import at
from tests.pipelines.by_hand import ByHand
from tests.pipelines.project.cli.project import TOML, Project

KEY = "Zebulon 'Q' <77>"


@pytest.fixture
def lived_in(project: Project) -> Project:
    (project.folder / "tidegate.toml").write_text(TOML)
    project.by_hand.filled("a key to forget", with_the_key)
    return project


def with_the_key(by_hand: ByHand) -> None:
    by_hand.epoch((KEY, at("08:00"), 1), ("ann", at("08:00"), 1), watermark=at("08:00"))
    by_hand.epoch(("ann", at("11:00"), 1), watermark=at("12:00"))


def work(project: Project) -> Path:
    return project.folder / "work"


def text(name: str, content: str) -> Callable[[Path], None]:
    def plant(work: Path) -> None:
        file = work / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
        long_ago = time.time() - 3600
        os.utime(file, (long_ago, long_ago))

    return plant


ALARM = json.dumps({"pipeline": "team_a_sessions", "name": "sessions", "message": f"failed: [user {KEY}]"})
KINDS = {
    "a run report": text("reports/sessions/epoch-000001.html", f"<p>{escape(KEY)}</p>"),
    "Data Docs": text("quality/sessions/check-000001-a.html", f"<p>{escape(KEY)}</p>"),
    "the list of Data Docs": text("quality/sessions/checks.json", json.dumps([KEY])),
    "rows that a killed check left": text("quality/sessions/parts-1/rows.arrow", KEY),
    "an alarm": text("alarms.jsonl", f"{ALARM}\n"),
    "an older alarm": text("alarms.1.jsonl", f"{ALARM}\n"),
    "the log of a Spark that has ended": text("logs/spark-99999999.log", f"Caused by: {KEY}"),
    "a checkpoint of an older version": text("checkpoints/sessions-1/rows", KEY),
}


@pytest.mark.first(1)
@pytest.mark.parametrize("rows", [True, False], ids=["with rows", "alone"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_key_goes_from_each_kind_of_file(lived_in: Project, kind: str, rows: bool) -> None:
    if not rows:
        lived_in.data("forget", "sessions", KEY, "--yes")
        lived_in.by_hand.epoch(("ann", at("14:00"), 1), watermark=at("15:00"))
        lived_in.data("tables", "vacuum", "sessions", "--snapshots", "1", "--days", "0")
    KINDS[kind](work(lived_in))
    assert files_with(KEY, work(lived_in)), "the search does not find the key in this kind of file"
    told = lived_in.data("forget", "sessions", KEY, "--yes")
    assert (told["epoch"] is not None) == rows
    assert files_with(KEY, lived_in.folder) == []


def test_files_of_others_stay(lived_in: Project) -> None:
    folder = work(lived_in)
    others = json.dumps({"pipeline": "others", "message": f"failed: [user {KEY}]"})
    ours = json.dumps({"pipeline": "sessions", "message": "the disk is full"})
    text("alarms.jsonl", f"{others}\n{ALARM}\n{ours}\n")(folder)
    text("reports/others/epoch-000001.html", "page")(folder)
    lived_in.data("forget", "sessions", KEY, "--yes")
    assert (folder / "alarms.jsonl").read_text() == f"{others}\n{ours}\n"
    assert (folder / "reports/others/epoch-000001.html").exists()


def test_savepoints_are_named_and_those_elsewhere_can_be_deleted(lived_in: Project) -> None:
    elsewhere = str(lived_in.folder / "elsewhere")
    lived_in.data("savepoints", "create", "sessions", "before")
    lived_in.data("savepoints", "create", "sessions", "whole", "--tables")
    lived_in.data("savepoints", "create", "sessions", "away", "--tables", "--to", elsewhere)
    assert files_with(KEY, lived_in.folder / "elsewhere")
    told = lived_in.says(0, "the savepoints are kept, without the key: ", "forget", "sessions", KEY, "--yes")
    assert "savepoints in other places" in told
    assert {*lived_in.data("forget", "sessions", KEY, "--yes")["savepoints"]} == {"before", "whole"}
    assert files_with(KEY, lived_in.folder / "warehouse" / "sessions") == []
    # The remedy that the message names.
    assert lived_in.tidegate("savepoints", "delete", "sessions", "away", "--at", elsewhere)[0] == 0
    assert files_with(KEY, lived_in.folder) == []
