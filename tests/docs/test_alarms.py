"""docs/operations/alarms.md quotes messages; each of them exists in the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operations" / "alarms.md").read_text()

QUOTED = sorted(
    {
        " ".join(text.split())
        for item in re.findall(
            r"^- \*\*(.*?)\*\*:", PAGE.partition("\n## A check failed\n")[0], re.DOTALL | re.MULTILINE
        )
        for text in re.findall(r'"([^"]+)"', item)
    }
)


@cache
def messages() -> str:
    """Return all strings of the code except docstrings; an interpolated value becomes one character."""
    return "\n".join(text for file in sorted((ROOT / "pipelines").rglob("*.py")) for text in _texts(file))


def _texts(file: Path) -> Iterator[str]:
    tree = ast.parse(file.read_text())
    docstrings = set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            docstrings.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "\0" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def is_told(quoted: str) -> bool:
    """Return True if a message contains this text; dots and NAME stand for values."""
    parts = [re.escape(part.strip()) for part in re.split(r"\.\.\.|NAME", quoted)]
    return re.search(".*".join(parts), messages()) is not None


def test_each_rule_of_a_check_has_an_item() -> None:
    rules = set(re.findall(r"\.Expect(\w+)\(", (ROOT / "expectations" / "suites.py").read_text()))
    assert len(rules) > 15
    page = " ".join(PAGE.partition("\n## A check failed\n")[2].split()).lower()
    words = {re.sub(r"(?<!^)([A-Z])", r" \1", rule).lower() for rule in rules}
    assert {each for each in words if each not in page} == set()


@pytest.mark.parametrize("quoted", QUOTED)
def test_a_quoted_message_is_one_of_the_code(quoted: str) -> None:
    assert is_told(quoted)


def test_many_messages_are_quoted_and_another_one_is_found() -> None:
    assert len(QUOTED) > 15
    assert not is_told("overlaps what was run")
