"""Notebooks of the guide: their code cells run in order, and their output is compared with the saved output.

python -m tests.docs.notebooks docs/guide/*.ipynb saves the output in the notebooks
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the cells with code."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def executed(notebook: dict[str, Any], **given: Any) -> tuple[dict[str, Any], list[list[dict[str, Any]]]]:
    """Run all code cells in one given scope; return the scope, and the outputs as a notebook stores them."""
    scope: dict[str, Any] = {"__name__": "__main__", **given}
    return scope, [_outputs(cell, scope, number) for number, cell in enumerate(code_cells(notebook), start=1)]


def _outputs(cell: dict[str, Any], scope: dict[str, Any], number: int) -> list[dict[str, Any]]:
    body = ast.parse("".join(cell["source"])).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(body, []), f"cell {number}", "exec"), scope)
        value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), scope) if last is not None else None
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": _lines(printed.getvalue())})
    if value is not None:
        data = {"text/plain": _lines(repr(value))}
        outputs.append({"data": data, "execution_count": number, "metadata": {}, "output_type": "execute_result"})
    return outputs


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def written(notebook: dict[str, Any]) -> dict[str, Any]:
    """Return the notebook with its actual outputs."""
    _, outputs = executed(notebook)
    for number, (cell, shown) in enumerate(zip(code_cells(notebook), outputs, strict=True), start=1):
        cell["execution_count"], cell["outputs"] = number, shown
    return notebook


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(json.dumps(written(json.loads(path.read_text())), indent=1, ensure_ascii=False) + "\n")
