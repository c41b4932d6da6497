"""Every step table of the guide comes out as it stands, and every code block runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.step_tables import BLOCK, actual, tables

GUIDE = Path(__file__).parents[2] / "docs" / "guide"
CONCEPTS = [
    "time-and-windows",
    "watermarks",
    "assigners",
    "triggers",
    "evictors",
    "timers",
    "merging",
    "top-n",
    "state-and-snapshots",
    "process-functions",
    "panes",
    "testing",
]


def page(name: str) -> str:
    return (GUIDE / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", CONCEPTS)
def test_the_tables_of_a_page_come_out_as_they_stand(name: str) -> None:
    text = page(name)
    found = list(tables(text))
    assert found, "a page without a step table shows nothing"
    for table in found:
        assert actual(text, table).rows == table.rows


@pytest.mark.parametrize("name", CONCEPTS)
def test_the_code_of_a_page_runs(name: str) -> None:
    scope: dict[str, object] = {}
    for block in BLOCK.findall(page(name)):
        exec(compile(block, f"{name}.md", "exec"), scope)


def test_a_table_that_is_wrong_is_found() -> None:
    text = page("time-and-windows")
    table = next(tables(text))
    table.rows[0][-1] = "something else"
    assert actual(text, table).rows != table.rows
