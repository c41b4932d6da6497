"""The glossary explains the words that pages and code use, each once and beside the word of the field."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "glossary.md"

ITEM = re.compile(r"^- \*\*(.+?)\*\*(?: \((.+?)\))?: (.+?)(?=^- |\n\n|\Z)", re.DOTALL | re.MULTILINE)
"""A word, the field's word if it has one, and the meaning."""
ROWS = ITEM.findall(PAGE.read_text())


MUST = {
    "epoch",
    "slice",
    "shard",
    "pane",
    "timeline",
    "stale",
    "reopened",
    "position",
    "frontier",
    "hand-over",
    "proof",
}
MUST |= {
    "heartbeat",
    "maintenance",
    "offset",
    "split",
    "lineage",
    "lease",
    "fence",
    "snapshot",
    "manifest",
    "watermark",
    "status",
}


def sources() -> str:
    """The text of all pages but this one, and of all code that is no test."""
    files = [path for path in (ROOT / "docs").rglob("*.md") if path != PAGE]
    files += [path for folder in ("windowing", "pipelines", "expectations") for path in (ROOT / folder).rglob("*.py")]
    return "\n".join(path.read_text().lower() for path in files)


TEXT = sources()


def uses(word: str) -> bool:
    return re.search(rf"\b{re.escape(word).replace('_', '[ _]')}", TEXT.replace("_", " ")) is not None


def test_every_item_of_the_page_has_a_word_and_a_meaning() -> None:
    assert len(ROWS) == PAGE.read_text().count("\n- ")
    assert [row for row in ROWS if not row[0] or not row[2].strip()] == []


def test_each_word_stands_once_and_in_the_order_of_the_alphabet() -> None:
    words = [word for word, *_ in ROWS]
    assert words == sorted(set(words), key=str.lower)
    assert MUST - set(words) == set()


@pytest.mark.parametrize("word", [word for word, *_ in ROWS])
def test_a_word_of_the_glossary_is_used(word: str) -> None:
    assert uses(word)


def test_a_word_that_nobody_uses_is_found() -> None:
    assert not uses("zeitgeber")
