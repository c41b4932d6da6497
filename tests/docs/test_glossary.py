"""The glossary explains the words that pages and code use, each once and beside the word of the field."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "glossary.md"

ITEM = re.compile(r"^- \*\*(.+?)\*\*(?: \((.+?)\))?: (.+?)(?=^- |\n\n|\Z)", re.DOTALL | re.MULTILINE)
"""A word, the field's word if it has one, and the meaning."""
ROWS = ITEM.findall(PAGE.read_text())


WORDS = """
epoch slice shard pane timeline stale reopened position frontier hand-over proof heartbeat maintenance offset split
lineage lease fence snapshot manifest watermark status
"""
MUST = {*WORDS.split()}


def sources() -> str:
    """The text of all pages but this one, and of all code that is no test."""
    files = [path for path in (ROOT / "docs").rglob("*.md") if path != PAGE]
    files += [path for folder in ("windowing", "pipelines", "expectations") for path in (ROOT / folder).rglob("*.py")]
    return "\n".join(path.read_text().lower() for path in files)


def unused(*words: str) -> list[str]:
    """The words that nothing uses."""
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
