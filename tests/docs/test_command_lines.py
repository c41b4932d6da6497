"""Each command line that a page prints is one that `tidegate` takes: command, options and arguments are there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tidegate.pipelines.project.cli import cli

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *(ROOT / "docs" / "guide").glob("*.md"),
    *(ROOT / "docs" / "operations").glob("*.md"),
    ROOT / "docs" / "glossary.md",
]

BLOCK = re.compile(r"^```\w*\n(.*?)^```", re.DOTALL | re.MULTILINE)
OPTIONAL = re.compile(r"\[(--[^\]]*)\]")
NUMBER = re.compile(r"(--[a-z-]+) N\b")


def command_lines(text: str) -> Iterator[str]:
    """Command lines in blocks and in the running text, without comments; N stands for a number."""
    for block in BLOCK.findall(text):
        yield from (line for line in block.splitlines() if line.startswith("tidegate "))
    yield from re.findall(r"`(tidegate\s[^`]*)`", BLOCK.sub("", text))


def fault(line: str) -> str | None:
    """Return the message of the error in a command line; a command that is only mentioned needs no arguments."""
    line = NUMBER.sub(r"\1 3", OPTIONAL.sub(r"\1", line.split(" #")[0].replace("...", "")))
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
    assert fault("tidegate quality visits --epoch N --report") is None
    assert fault("tidegate stream visits --availabel-now") is not None
    assert fault("tidegate snapshot lists visits") == "there is no command lists"
    assert fault("tidegate late prune visits") is not None
