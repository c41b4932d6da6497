"""The names in `Args:` and `Raises:` of docstrings exist.

Ruff's rules (DOC) compare a docstring with the statements of that function alone, but most arguments are fields of
classes, and most errors come from a function that is called.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import click
import pyarrow as pa
import pytest

ROOT = Path(__file__).parent.parent
TREES = {
    file: ast.parse(file.read_text())
    for folder in ("windowing", "pipelines", "expectations")
    for file in sorted((ROOT / folder).rglob("*.py"))
}
Documented: TypeAlias = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef

CLASSES: dict[str, list[ast.ClassDef]] = defaultdict(list)
for _tree in TREES.values():
    for _node in ast.walk(_tree):
        if isinstance(_node, ast.ClassDef):
            CLASSES[_node.name].append(_node)


def section(docstring: str, name: str) -> Iterator[str]:
    """Yield the names that a section of a docstring describes, several before one colon each."""
    found = re.search(rf"^{name}:\n((?:    .*\n|\n)*)", f"{docstring}\n", re.MULTILINE)
    for line in re.findall(r"^    (\S[^:]*): ", found[1] if found else "", re.MULTILINE):
        yield from re.split(r", | or | and ", re.sub(r" \(.*\)$", "", line))


def arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    given = node.args
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs, *filter(None, (given.vararg, given.kwarg))]
    return {each.arg for each in every}


def fields(node: ast.ClassDef, below: frozenset[str] = frozenset()) -> set[str]:
    """Return the fields of a class and of its bases, and the arguments of its constructor."""
    names: set[str] = set()
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            names.add(each.target.id)
        elif isinstance(each, ast.FunctionDef) and each.name in ("__init__", "__new__"):
            names |= arguments(each)
    for base in node.bases:
        name = ast.unparse(base).partition("[")[0].rpartition(".")[2]
        for other in CLASSES[name] if name not in below else ():
            names |= fields(other, below | {name})
    return names


def unknown(tree: ast.Module) -> Iterator[str]:
    """Yield the faulty names of a module's docstrings."""
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    for node in ast.walk(tree):
        if not isinstance(node, Documented) or (docstring := ast.get_docstring(node)) is None:
            continue
        known = fields(node) if isinstance(node, ast.ClassDef) else arguments(node)
        yield from (
            f"{node.name}: Args: {name}" for name in section(docstring, "Args") if name.strip("*`") not in known
        )
        for name in section(docstring, "Raises"):
            last = name.strip("`").rpartition(".")[2]
            exists = CLASSES.get(last) or last in imported or any(hasattr(each, last) for each in (builtins, pa, click))
            if not exists:
                yield f"{node.name}: Raises: {name}"


@pytest.mark.parametrize("file", TREES, ids=lambda file: str(file.relative_to(ROOT)))
def test_each_argument_and_error_that_a_docstring_names_exists(file: Path) -> None:
    assert list(unknown(TREES[file])) == []


def test_a_name_that_does_not_exist_is_found() -> None:
    code = '''
class Point:
    """A point.

    Args:
        x, y: where it lies.
        z: nothing.

    Raises:
        ValueError: never.
        NoSuchError: always.
    """

    x: int
    y: int

    def moved(self, by: int) -> Point:
        """Return it elsewhere.

        Args:
            by: how far.
            to: nothing.
        """
'''
    assert list(unknown(ast.parse(code))) == [
        "Point: Args: z",
        "Point: Raises: NoSuchError",
        "moved: Args: to",
    ]
