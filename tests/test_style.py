"""Plain English in the code: docstrings open with a verb or a noun, and variables carry the name of the thing."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

QUESTION_WORDS = frozenset({"what", "whether", "which", "where", "when", "who", "of", "how"})
"""Words that no docstring opens with: "Return the rows ..." or "The lease of a pipeline" is read faster."""
EMPTY_NAMES = frozenset({"one", "own", "found", "known", "made", "told", "there", "some"})
"""Names that say nothing about a value."""


def rooms() -> Iterator[str]:
    """Yield the rooms: each folder of `windowing` and `pipelines`, their loose files, and the smaller packages."""
    for package in ("windowing", "pipelines"):
        yield package
        yield from (f"{package}/{folder.name}" for folder in sorted((ROOT / package).iterdir()) if holds_code(folder))
    yield from ("expectations", "benchmarks", "dags")


def rooms_of_tests() -> Iterator[str]:
    """Yield the folders of `tests`, and its loose files as one room."""
    yield "tests"
    yield from (f"tests/{folder.name}" for folder in sorted((ROOT / "tests").iterdir()) if holds_code(folder))


def holds_code(folder: Path) -> bool:
    return folder.is_dir() and next(folder.rglob("*.py"), None) is not None


def files(room: str) -> list[Path]:
    """Return the files of a room; of a package with rooms, only its loose files."""
    folder = ROOT / room
    return sorted(folder.glob("*.py") if room in ("windowing", "pipelines", "tests") else folder.rglob("*.py"))


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and text of every docstring: those of modules, classes and functions, and those below a value."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value.strip()


def local_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and name of every parameter, and of every variable of a function."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.arg):
                yield node.lineno, node.arg
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.lineno, node.id


def opens_with_a_question(text: str) -> bool:
    first = text.split(maxsplit=1)[0] if text else ""
    return first.strip(",.:;'\"`").lower() in QUESTION_WORDS


@pytest.mark.parametrize("room", [*rooms(), *rooms_of_tests()])
def test_no_docstring_of_a_room_opens_with_a_question_word(room: str) -> None:
    broken = [
        f"{file.relative_to(ROOT)}:{line} opens with {text.split(maxsplit=1)[0]!r}: open with a verb or a noun"
        for file in files(room)
        for line, text in docstrings(ast.parse(file.read_text()))
        if opens_with_a_question(text)
    ]
    assert broken == []


@pytest.mark.parametrize("room", list(rooms()))
def test_no_variable_of_a_room_has_a_name_that_says_nothing(room: str) -> None:
    broken = {
        f"{file.relative_to(ROOT)}:{line} has a variable {name!r}: name the thing"
        for file in files(room)
        for line, name in local_names(ast.parse(file.read_text()))
        if name in EMPTY_NAMES
    }
    assert broken == set()


@pytest.mark.parametrize(
    "source",
    [
        '"""Of the files those that are new."""',
        'LIMIT = 3\n"""How many stay."""',
        'class Row:\n    """Which row it is."""',
        'class Row:\n    size: int\n    """What it takes."""',
        'def is_new() -> bool:\n    """\n    Whether it is new.\n    """',
    ],
)
def test_a_docstring_that_opens_with_a_question_word_is_seen_wherever_it_stands(source: str) -> None:
    assert [text for _, text in docstrings(ast.parse(source)) if opens_with_a_question(text)] != []


@pytest.mark.parametrize("text", ["Return the rows.", "The lease of a pipeline.", "Whole rows.", "Offset in ms.", ""])
def test_other_docstrings_pass(text: str) -> None:
    assert not opens_with_a_question(text)


def test_an_empty_name_is_seen_as_a_parameter_a_variable_and_in_a_comprehension() -> None:
    source = "def f(one, *, told=1):\n    found = [some for some in one]\n    return lambda own: found\n"
    assert {name for _, name in local_names(ast.parse(source))} == {"one", "told", "found", "some", "own"}
