"""Every command that a message or a page of the code names in backticks exists, and so do its options."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click

from tidegate.pipelines.project.cli import cli

ROOT = Path(__file__).parents[1]
_VALUE = "VALUE"
_COMMAND = re.compile(r"`tidegate ([^`]+)`")


def texts(tree: ast.AST) -> Iterator[str]:
    """Yield the texts of a module as they would be with values in them."""
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else _VALUE for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            yield re.sub(r"\{\w+\}", _VALUE, node.value)


def named() -> list[tuple[str, str]]:
    """Return the files and the commands that they name."""
    return sorted(
        {
            (str(file.relative_to(ROOT)), " ".join(command.split()))
            for room in ("pipelines", "expectations")
            for file in sorted((ROOT / room).rglob("*.py"))
            for text in texts(ast.parse(file.read_text()))
            for command in _COMMAND.findall(text)
        }
    )


def told() -> Iterator[tuple[str, str]]:
    """Yield the messages outside of the command line, with their files, that name a command."""
    for room in ("pipelines", "expectations"):
        for file in sorted((ROOT / room).rglob("*.py")):
            if file.is_relative_to(ROOT / "pipelines" / "project" / "cli"):
                continue
            tree = ast.parse(file.read_text())
            documents = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
            for node in ast.walk(tree):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents:
                    yield from (
                        (str(file.relative_to(ROOT)), found) for found in re.findall("`tidegate [a-z]+", node.value)
                    )


def test_no_message_below_the_command_line_spells_a_command() -> None:
    """They hold remedies, which one file puts into words: for Python, too."""
    assert [*told()] == []


def missing(command: str) -> list[str]:
    """Return the words of a command line that are neither commands nor options."""
    found: click.Command = cli
    words = command.split()
    context = click.Context(cli)
    while words and isinstance(found, click.Group):
        inner = found.get_command(context, words[0])
        if inner is None:
            return [words[0]]
        found, words = inner, words[1:]
    options = {name for parameter in found.params for name in (*parameter.opts, *parameter.secondary_opts)}
    given = {word.partition("=")[0] for word in words if word.startswith("--")}
    return sorted(given - options - {"--help"})


def test_each_command_that_a_message_names_exists_with_its_options() -> None:
    found = [(file, command) for file, command in named() if not {_VALUE, "NAME"} & {*command.split()[:1]}]
    assert len(found) > 20
    assert [(file, command, wrong) for file, command in found if (wrong := missing(command))] == []


def test_a_command_that_does_not_exist_is_found() -> None:
    assert missing("restor p latest") == ["restor"]
    assert missing("restore p latest --give-back") == ["--give-back"]
    assert missing("quality acknowledge p --reasons x") == ["--reasons"]
