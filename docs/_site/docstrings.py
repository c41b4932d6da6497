"""Docstrings as reStructuredText reads them: outside of code, a bar is a bar and no substitution."""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx

_CODE = re.compile(r"(`+[^`]*`+)")


def escaped(line: str) -> str:
    """Return the line with the bars outside of its code escaped."""
    parts = _CODE.split(line)
    return "".join(part if number % 2 else part.replace("|", "\\|") for number, part in enumerate(parts))


def _escape(app: Sphinx, what: str, name: str, obj: object, options: Any, lines: list[str]) -> None:
    lines[:] = [line if line.lstrip().startswith((">>>", "...")) else escaped(line) for line in lines]


def setup(app: Sphinx) -> dict[str, bool]:
    """Look at every docstring before it is parsed."""
    app.connect("autodoc-process-docstring", _escape)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
