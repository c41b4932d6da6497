"""The loads on the page "When the source changes" publish just the rows that the page shows after each of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.expectations.broken import broken_in
from tests.lake import Lake, hourly_pipeline
from tests.pipelines.looping import available
from tidegate.pipelines import DeltaSource

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "when-the-source-changes.md"
LOAD = re.compile(r"```python\n([^`]*)```\n\n((?:\|.*\n)+)")
BEGIN = re.compile(r"```python\n([^`]*write_deltalake\(events, rows[^`]*)```\n\nThe loads")
HOURS = hourly_pipeline(source=DeltaSource("events", timestamp="at", changes="correct"))


def cells(rows: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in rows.splitlines()]


def loads(text: str) -> Iterator[tuple[str, list[list[str]]]]:
    """Yield each load and the rows that the page shows after it."""
    for code, table in LOAD.findall(text):
        yield code, cells(table)[2:]


def published(lake: Lake, after: int) -> list[list[str]]:
    return [
        [row["user"], f"{row['window_start']:%H:%M}", row["op"], str(row["pane"]), str(row["total"])]
        for row in lake.rows(HOURS, "results").to_pylist()
        if row["epoch"] > after
    ]


def test_each_load_of_the_page_publishes_the_rows_that_follow_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text, lake, scope = PAGE.read_text(encoding="utf-8"), Lake(tmp_path), dict[str, Any]()
    (begin,) = BEGIN.findall(text)
    exec(compile(begin, PAGE.name, "exec"), scope)
    available(lake, HOURS)
    assert sorted(published(lake, 0)) == [["ann", "10:00", "+", "0", "7"], ["bob", "10:00", "+", "0", "5"]]
    shown = list(loads(text))
    assert len(shown) == 5
    for code, expected in shown:
        before = lake.snapshot(HOURS).manifest.epoch
        exec(compile(code, PAGE.name, "exec"), scope)
        available(lake, HOURS)
        assert sorted(published(lake, before)) == sorted(expected), code
    assert broken_in(lake.tables(HOURS), HOURS) == set()
