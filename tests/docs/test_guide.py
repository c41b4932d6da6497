"""Every step table of the guide comes out as it stands, and every code block runs.

The first screen of the README: a picture of a real run, three numbers that are so, and the two commands. The glossary
explains the words that pages and code use, each once and beside the word of the field. Each command line that a page
prints is one that `tidegate` takes: command, options and arguments are there. The loads on the page "When the source
changes" publish just the rows that the page shows after each of them.
"""

from __future__ import annotations

import json
import re
import shlex
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from tests.docs.step_tables import BLOCK, actual, tables
from tests.expectations.broken import broken_in
from tests.lake import LOCAL, Lake, hourly_pipeline
from tidegate.pipelines import DeltaSource
from tidegate.pipelines.project.cli import cli

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


ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
FIRST_SCREEN = "\n".join(README.splitlines()[:30])


def test_the_picture_is_there_and_light() -> None:
    (picture,) = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", FIRST_SCREEN)
    data = (ROOT / picture).read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    assert (width, height) == (1200, 800)
    assert len(data) < 300_000
    assert "picture" in re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_the_first_screen_has_three_sentences_with_a_number_each() -> None:
    reasons = re.findall(r"^- \*\*\w+\.\*\* (.*?)(?=^- |^$)", FIRST_SCREEN, re.DOTALL | re.MULTILINE)
    assert len(reasons) == 3
    assert [reason for reason in reasons if not re.search(r"\d", reason)] == []


def test_the_number_of_conformance_cases_is_true() -> None:
    cases = [json.loads(file.read_text())["cases"] for file in (ROOT / "tests" / "conformance").glob("*.json")]
    # The only case that needs Spark: the key groups.
    (number,) = re.findall(r"(\d+) \[conformance cases\]", FIRST_SCREEN)
    assert int(number) == sum(map(len, cases)) - 1


def test_the_ratio_to_spark_is_that_of_the_benchmarks() -> None:
    (number,) = re.findall(r"(\d+\.\d) times as fast as with Spark's own\s+`session_window`", FIRST_SCREEN)
    page = (ROOT / "docs" / "benchmarks" / "quick.md").read_text()
    (measured,) = re.findall(r"\| batch, session windows, vs\. Spark \| (\d+\.\d+) x", page)
    assert float(number) <= float(measured) < float(number) + 0.1, "say less where it is measured anew"


def test_the_number_of_kills_is_that_of_the_test() -> None:
    (number,) = re.findall(r"kills a stream (\d+) times", FIRST_SCREEN)
    text = (ROOT / "tests" / "recovery" / "test_kills.py").read_text()
    assert f'"TIDEGATE_TEST_KILLS", "{number}"' in text


def test_the_two_commands_stand_on_the_first_screen() -> None:
    (block,) = re.findall(r"^```\n(.*?)^```$", FIRST_SCREEN, re.DOTALL | re.MULTILINE)
    assert [line.partition("#")[0].strip() for line in block.splitlines()] == ["make run", "make test"]


def test_the_comparison_has_a_cell_for_each_system_in_every_row() -> None:
    (section,) = re.findall(r"^## Compared with other tools\n(.*?)^## ", README, re.DOTALL | re.MULTILINE)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    assert [name for name in ("Tidegate", "Spark", "Flink", "dbt") if not any(name in cell for cell in rows[0])] == []
    assert [row for row in rows if len(row) != 5 or not all(row[1:])] == []


def test_examples_import_from_tidegate() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    assert set(re.findall(r"^from (tidegate[\w.]*) import", "\n".join(blocks), re.MULTILINE)) == {"tidegate"}


PAGE = ROOT / "docs" / "glossary.md"

ITEM = re.compile(r"^- \*\*(.+?)\*\*(?: \((.+?)\))?: (.+?)(?=^- |\n\n|\Z)", re.DOTALL | re.MULTILINE)
"""A word, the field's word if there is one, and the meaning."""
ROWS = ITEM.findall(PAGE.read_text())


WORDS = """
epoch slice shard pane stale position frontier handover proof correction lineage lease fence snapshot manifest
watermark
"""
MUST = {*WORDS.split()}


def sources() -> str:
    """Return the text of all other pages, and of all code except tests."""
    files = [path for path in (ROOT / "docs").rglob("*.md") if path != PAGE]
    files += [path for folder in ("windowing", "pipelines", "expectations") for path in (ROOT / folder).rglob("*.py")]
    return "\n".join(path.read_text().lower() for path in files)


def unused(*words: str) -> list[str]:
    """Return the words that nothing uses."""
    text = sources().replace("_", " ")
    return [word for word in words if not re.search(rf"\b{re.escape(word).replace('_', '[ _]')}", text)]


def test_every_item_of_the_page_has_a_word_and_a_meaning() -> None:
    assert len(ROWS) == PAGE.read_text().count("\n- ")
    assert [row for row in ROWS if not row[0] or not row[2].strip()] == []


def test_each_word_stands_once_and_in_the_order_of_the_alphabet() -> None:
    words = [word for word, *_ in ROWS]
    assert words == sorted(set(words), key=str.lower)
    assert MUST - set(words) == set()


def test_the_words_of_the_glossary_are_used_and_one_that_nobody_uses_is_found() -> None:
    assert unused(*(word for word, *_ in ROWS), "zeitgeber") == ["zeitgeber"]


PAGES = [
    ROOT / "README.md",
    *(ROOT / "docs" / "guide").glob("*.md"),
    *(ROOT / "docs" / "operations").glob("*.md"),
    ROOT / "docs" / "glossary.md",
]

CODE = re.compile(r"^```\w*\n(.*?)^```", re.DOTALL | re.MULTILINE)
OPTIONAL = re.compile(r"\[(--[^\]]*)\]")
NUMBER = re.compile(r"(--[a-z-]+) N\b")


def command_lines(text: str) -> Iterator[str]:
    """Return the command lines in code blocks and in the text, without comments; N stands for a number."""
    for block in CODE.findall(text):
        yield from (line for line in block.splitlines() if line.startswith("tidegate "))
    yield from re.findall(r"`(tidegate\s[^`]*)`", CODE.sub("", text))


def fault(line: str) -> str | None:
    """Return the error message for a command line. A command that is only mentioned needs no arguments."""
    line = NUMBER.sub(
        r"\1 3", OPTIONAL.sub(r"\1", line.split(" #")[0].replace("...", "").replace(" FILE", " /dev/null"))
    )
    words = shlex.split(" ".join(line.split()))[1:]
    command: click.Command = cli
    ctx = click.Context(cli)
    while isinstance(command, click.Group) and words:
        named = command.get_command(ctx, words[0])
        if named is None:
            return f"there is no command {words[0]}"
        words, command, ctx = words[1:], named, click.Context(named, parent=ctx, info_name=words[0])
    is_mention = all(word.startswith("--") for word in words)
    try:
        if not isinstance(command, click.Group):
            command.make_context("tidegate", words)
    except click.exceptions.Exit:
        return None
    except click.MissingParameter as error:
        return None if is_mention else error.format_message()
    except click.ClickException as error:
        return error.format_message()
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_line_of_a_page_is_taken(page: Path) -> None:
    faults = {line: fault(line) for line in command_lines(page.read_text())}
    assert {line: message for line, message in faults.items() if message is not None} == {}


def test_many_lines_are_read_and_a_wrong_one_is_found() -> None:
    assert sum(len(list(command_lines(page.read_text()))) for page in PAGES) > 100
    assert fault("tidegate quality check visits --epoch N --report") is None
    assert fault("tidegate stream visits --availabel-now") is not None
    assert fault("tidegate snapshots lists visits") == "there is no command lists"
    assert fault("tidegate late prune visits") is not None


LOADS_PAGE = Path(__file__).parents[2] / "docs" / "guide" / "when-the-source-changes.md"
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
    text, lake, scope = LOADS_PAGE.read_text(encoding="utf-8"), Lake(tmp_path), dict[str, Any]()
    (begin,) = BEGIN.findall(text)
    exec(compile(begin, LOADS_PAGE.name, "exec"), scope)
    lake.stream(LOCAL, HOURS)
    assert sorted(published(lake, 0)) == [["ann", "10:00", "+", "0", "7"], ["bob", "10:00", "+", "0", "5"]]
    shown = list(loads(text))
    assert len(shown) == 5
    for code, expected in shown:
        before = lake.snapshot(HOURS).manifest.epoch
        exec(compile(code, LOADS_PAGE.name, "exec"), scope)
        lake.stream(LOCAL, HOURS)
        assert sorted(published(lake, before)) == sorted(expected), code
    assert broken_in(lake.tables(HOURS), HOURS) == set()
