"""Text from data, made safe to show: without characters that a terminal or browser interprets as commands.

A key can be any string. In a terminal, an escape sequence in it could hide rows, change the title or write to the
clipboard; a line break could forge a row; and direction characters display text in the wrong order.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment

_CONTROL = "\x00-\x08\x0b-\x1f\x7f-\x9f"
"""Control characters except line feed and tab; those above 127 also begin escape sequences."""
_DIRECTION = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_LINES = "\u2028\u2029"
_SURROGATES = "\ud800-\udfff"
"""Lone surrogates, which can't be written to any output."""

_HOSTILE = re.compile(f"[{_CONTROL}{_DIRECTION}{_LINES}{_SURROGATES}]")
_HOSTILE_IN_CELL = re.compile(f"[\\n\\t{_CONTROL}{_DIRECTION}{_LINES}{_SURROGATES}]")


def plain(text: str) -> str:
    r"""Escape control characters in a string, for example as `\x1b`. Line breaks and tabs are kept."""
    return _HOSTILE.sub(_escape, text)


def plain_cell(text: str) -> str:
    r"""Escape a string for a single line, such as a table cell: line breaks become `\n` too."""
    return _HOSTILE_IN_CELL.sub(_escape, text)


def templates_in(folder: Path) -> Environment:
    """Return the templates of a folder. They have the style sheet `look` and filter `number`, and escape all text."""
    from jinja2 import Environment, FileSystemLoader

    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: plain(value) if type(value) is str else value,
    )
    environment.filters["number"] = lambda value: "-" if value is None else f"{value:,}"
    environment.globals["look"] = look()
    return environment


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape", "surrogatepass").decode("ascii")


@cache
def look() -> str:
    """Return the style sheet of Data Docs and of the page in Airflow, which each page includes: pages load nothing."""
    return Path(__file__).with_name("look.css").read_text(encoding="utf-8")
