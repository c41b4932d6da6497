"""Notebooks as pages of the site: their text, their code, and the outputs that they were saved with."""

from __future__ import annotations

import json
from typing import Any

from docutils import nodes
from myst_parser.parsers.sphinx_ import MystParser
from sphinx.application import Sphinx


class NotebookParser(MystParser):
    """Reads a notebook as the Markdown page that it amounts to. Nothing is run: a test runs the cells."""

    supported = ("notebook",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        super().parse(as_markdown(json.loads(inputstring)), document)


def as_markdown(notebook: dict[str, Any]) -> str:
    """Return the cells of a notebook as one Markdown page."""
    parts = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(text)
            continue
        parts.append(f"```python\n{text}\n```")
        shown = "".join(_text_of(output) for output in cell["outputs"]).rstrip()
        if shown:
            parts.append(f"```text\n{shown}\n```")
    return "\n\n".join(parts) + "\n"


def _text_of(output: dict[str, Any]) -> str:
    return "".join(output["text"] if "text" in output else output["data"]["text/plain"])


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the parser for files that end in `.ipynb`."""
    app.add_source_suffix(".ipynb", "notebook")
    app.add_source_parser(NotebookParser)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
