"""Messages name nothing that an installed package lacks: a wheel contains no page of the documentation."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_docs import COMMANDS

ROOT = Path(__file__).parent.parent
PRODUCT = [
    file for package in ("windowing", "pipelines", "expectations") for file in sorted((ROOT / package).rglob("*.py"))
]
PAGE = re.compile(r"\bdocs/[\w-]+/?[\w-]*\.md|\b[\w/-]+\.md\b")


def texts(source: str) -> Iterator[str]:
    """Yield the strings of a module except docstrings, which readers of the code see."""
    tree = ast.parse(source)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    # A string that is a statement documents what precedes it.
    docs = {
        id(each.value)
        for node in ast.walk(tree)
        if isinstance(node, documented)
        for each in node.body
        if isinstance(each, ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value


def pages_in(source: str) -> list[str]:
    return [text for text in texts(source) if PAGE.search(text)]


@pytest.mark.parametrize("file", PRODUCT, ids=lambda file: str(file.relative_to(ROOT)))
def test_no_message_names_a_page_of_the_documentation(file: Path) -> None:
    assert pages_in(file.read_text()) == []


@pytest.mark.parametrize("name", COMMANDS, ids=" ".join)
def test_no_help_names_a_page_of_the_documentation(name: tuple[str, ...]) -> None:
    command = COMMANDS[name]
    helps = [command.help or "", *(getattr(option, "help", None) or "" for option in command.params)]
    assert [text for text in helps if PAGE.search(text)] == []


def test_a_page_in_a_message_is_found() -> None:
    code = '"""See docs/a.md."""\ndef f():\n    """See docs/b.md."""\n    raise E(f"{x}: docs/guide/c.md says why")\n'
    assert pages_in(code) == [": docs/guide/c.md says why"]


@pytest.mark.parametrize("file", PRODUCT, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_message_counts_with_a_plural(file: Path) -> None:
    found = [text for text in texts(file.read_text()) if re.search(r"[a-z]\((e?s)\)(?!\w)", text)]
    assert found == [], "write count_of(number, noun)"
