"""The diagram of docs/architecture.md is correct: arrows between packages are imports."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from tests.test_import_rules import imports

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text()
_, ROOMS = re.findall(r"^```mermaid\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)

NODE = r"(\w+)(?:\[[^\]]*\])?"
ARROW = re.compile(rf"^\s*{NODE} (-->|---)(?:\|([^|]*)\|)? {NODE}\s*$", re.MULTILINE)

Graph = dict[str, set[str]]


def drawn(picture: str) -> list[tuple[str, str, str]]:
    """Return the arrows of a diagram: from, name, to."""
    return [(start, label, end) for start, _, label, end in ARROW.findall(picture)]


HANDS_ON = {ROOT / "pipelines" / "testing.py"}
"""Files that only export names of a package to users, as the `__init__` of a top package does."""

MOST_PACKAGES, MOST_FLOORS = 12, 9
"""Bounds of `tidegate.pipelines`; `examples`, written as users write, does not count."""


def room_of(module: Path) -> str:
    """Return the package of a file below a top package: its first folder, or `ground` for a loose file of
    `pipelines`.
    """
    package, *folders, _ = module.relative_to(ROOT).parts
    return (
        "checks" if package == "expectations" else folders[0] if folders else "ground" if package == "pipelines" else ""
    )


@cache
def imported() -> Graph:
    """Return the packages that each package imports. A package's own `__init__` only re-exports names."""
    graph: Graph = {}
    for package in ("windowing", "pipelines", "expectations"):
        for file in (ROOT / package).rglob("*.py"):
            is_door = file.parent == ROOT / package and file.name == "__init__.py"
            if is_door or file in HANDS_ON or not (room := room_of(file)):
                continue
            for _, name in imports(file):
                path = ROOT.joinpath(*name.split(".")[1:])
                target = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
                if name.startswith("tidegate.") and target.parent != ROOT and len(name.split(".")) > 2:
                    graph.setdefault(room, set()).add(room_of(target))
    return {room: others - {room, ""} for room, others in graph.items()}


def reached(graph: Mapping[str, set[str]], start: str) -> set[str]:
    """Return every package that arrows lead to from one."""
    seen, left = set[str](), [start]
    while left:
        new = graph.get(left.pop(), set()) - seen
        seen |= new
        left += new
    return seen


def missing(arrows: list[tuple[str, str, str]], graph: Graph) -> list[str]:
    """Return arrows without an import."""
    return [f"{start} --> {end}" for start, _, end in arrows if end not in graph.get(start, set())]


def test_every_arrow_between_rooms_is_an_import_and_has_a_name() -> None:
    arrows = drawn(ROOMS)
    assert len(arrows) == ROOMS.count("-->"), "each arrow stands as the test reads it"
    assert [(start, end) for start, label, end in arrows if not label] == []
    assert missing(arrows, imported()) == []


def test_an_arrow_without_an_import_is_found() -> None:
    assert missing([("tables", "ask", "cli")], imported()) == ["tables --> cli"]


def test_every_import_between_rooms_of_pipelines_goes_along_the_arrows() -> None:
    graph: Graph = {}
    for start, _, end in drawn(ROOMS):
        graph.setdefault(start, set()).add(end)
    rooms = {room_of(file) for file in (ROOT / "pipelines").rglob("*.py")}
    astray = {
        f"{room} --> {other}"
        for room in rooms
        for other in imported().get(room, set()) & rooms
        if other not in reached(graph, room)
    }
    assert astray == set()


def test_the_picture_and_the_table_have_every_room_of_pipelines() -> None:
    folders = {path.name for path in (ROOT / "pipelines").iterdir() if (path / "__init__.py").is_file()}
    nodes = set(re.findall(r"^    (\w+)", ROOMS, re.MULTILINE))
    assert folders - nodes == set()
    rows = set(re.findall(r"^- `(\w+/\w+)`:", PAGE, re.MULTILINE))
    assert {f"pipelines/{folder}" for folder in folders} - rows == set()
    assert [row for row in rows if not (ROOT / row).is_dir()] == []


def floor(graph: Graph, room: str) -> int:
    """Return the number of a package's level: 1 if it imports no other package."""
    return 1 + max((floor(graph, other) for other in graph.get(room, set())), default=0)


def test_pipelines_has_few_packages_on_few_floors() -> None:
    rooms = {room_of(file) for file in (ROOT / "pipelines").rglob("*.py")} - {"ground", "examples"}
    graph = {room: imported().get(room, set()) & rooms for room in rooms}
    assert len(rooms) <= MOST_PACKAGES
    assert max(floor(graph, room) for room in rooms) <= MOST_FLOORS
