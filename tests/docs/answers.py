"""The reference of answers: for each method, the facts and the columns that it declares.

python -m tests.docs.answers          writes docs/reference/answers.md
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path

from tidegate.pipelines.observe.report.answer import Answer, Facts, Listing
from tidegate.pipelines.observe.report.columns import Columns
from tidegate.pipelines.project.cli.declared import namespaces, verbs

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "answers.md"
HEAD = """# Columns of answers

`python -m tests.docs.answers` makes this page from the declarations in the code.

Every method of a `Project`, and so every command, answers with a table or with facts and tables. As JSON, a table is a
list of rows, and facts are an object with a field for each fact and a list of rows for each table. `to_arrow()` and
`to_pandas()` return the main table, which is the first one; the metadata of an Arrow field has its unit. Users see the
columns that have a header. Columns with the name of a key column or of a user's column are added.
"""


def methods() -> Iterator[tuple[str, Callable[..., Answer]]]:
    """Yield each method with its name, in name spaces too."""
    for space in (None, *namespaces()):
        for name, method in verbs(space).items():
            yield ".".join(filter(None, (space, name.replace("-", "_")))), method


def kinds() -> dict[str, type[Facts | Listing]]:
    """Return the classes of answers by name."""
    for package in ("ask", "project"):
        for module in pkgutil.iter_modules([str(ROOT / "pipelines" / package)]):
            importlib.import_module(f"tidegate.pipelines.{package}.{module.name}")
    importlib.import_module("tidegate.expectations.check")
    return {kind.__name__: kind for kind in (*Facts.__subclasses__(), *Listing.__subclasses__())}


def answered(method: Callable[..., Answer]) -> list[str]:
    """Return the names of the classes that a method returns."""
    return str(inspect.signature(method).return_annotation).split(" | ")


def page() -> str:
    """Return the page."""
    known, parts = kinds(), [HEAD]
    for name, method in methods():
        for kind in map(known.__getitem__, answered(method)):
            parts.append(f"## {name}: {kind.__name__}\n")
            if issubclass(kind, Listing):
                parts.append(_table(kind.columns))
            else:
                parts.append(_table(kind.facts))
                parts += [f"Table `{table}`:\n\n{_table(columns)}" for table, columns in kind.holds.items()]
    return "\n".join(parts)


def _table(columns: Columns) -> str:
    if not columns:
        return "Its columns depend on the pipeline.\n"
    rows = [f"| `{each.name}` | {each.unit.name} | {each.title or '-'} |" for each in columns]
    return "\n".join(["| name | unit | header |", "|---|---|---|", *rows, ""])


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
