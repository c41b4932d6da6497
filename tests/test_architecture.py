"""The diagrams of docs/architecture.md are correct: arrows between packages are imports, and steps name what does
them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from functools import cache
from itertools import tee
from pathlib import Path
from types import FrameType

import pytest
from deltalake import DeltaTable

from tests.lake import DAY0, LOCAL, Lake, at, hourly_pipeline
from tests.test_contributing import faults, named
from tests.test_import_rules import imports
from tidegate.pipelines import DeltaSource
from tidegate.pipelines.definition.config.settings import PipelineEntry
from tidegate.pipelines.project.snapshots import restore

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text()
LIFE = (ROOT / "docs" / "the-life-of-an-epoch.md").read_text()
(ROOMS,), (EPOCH,) = (re.findall(r"^```mermaid\n(.*?)^```$", page, re.DOTALL | re.MULTILINE) for page in (PAGE, LIFE))

NODE = r"(\w+)(?:\[[^\]]*\])?"
ARROW = re.compile(rf"^\s*{NODE} (-->|---)(?:\|([^|]*)\|)? {NODE}\s*$", re.MULTILINE)

Graph = dict[str, set[str]]


def drawn(picture: str) -> list[tuple[str, str, str]]:
    """Return the arrows of a diagram: from, name, to."""
    return [(start, label, end) for start, _, label, end in ARROW.findall(picture)]


HANDS_ON = {ROOT / "pipelines" / "testing.py"}
"""Files that only export names of a package to users, as the `__init__` of a top package does."""

MOST_PACKAGES, MOST_FLOORS = 10, 8
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


def steps_of(life: str) -> dict[str, str]:
    """Return the steps that the page of a life lists, each with its text."""
    page = (ROOT / "docs" / f"the-life-of-{life}.md").read_text()
    return dict(re.findall(r"^- \*\*(.+?)\*\*(.*?)(?=^- |\n\n)", page, re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("life", ["a-correction", "a-restore"])
def test_every_step_of_a_life_names_files_and_what_they_define(life: str) -> None:
    steps = steps_of(life)
    assert {"plan", "commit", "publish"} <= set(steps)
    assert [row for row in steps.values() if not any(names for _, names in named(row))] == []
    assert faults((ROOT / "docs" / f"the-life-of-{life}.md").read_text()) == []


def made(steps: Mapping[str, str], life: Callable[[], object]) -> list[str]:
    """Return the steps for which a life calls nothing that they name, after the steps before them have happened."""
    wanted = {step: {(file, name) for file, names in named(row) for name in names} for step, row in steps.items()}
    files = {str(ROOT / "tidegate" / file): file for row in steps.values() for file, _ in named(row)}
    files |= {str(ROOT / file): file for file in files.values()}
    calls: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and (file := files.get(frame.f_code.co_filename)) is not None:
            calls.append((file, frame.f_code.co_qualname))

    sys.setprofile(note)
    try:
        life()
    finally:
        sys.setprofile(None)
    missing, later = [], iter(calls)
    for step, names in wanted.items():
        before, later = tee(later)
        for file, name in later:
            if {(file, name), (file, name.partition(".")[0])} & names:
                break
        else:
            missing.append(step)
            later = before
    return missing


def test_a_life_takes_its_steps_in_the_order_of_its_page(lake: Lake) -> None:
    pipeline = hourly_pipeline(source=DeltaSource("events", timestamp="at", changes="correct"))
    lake.append(("ann", at("10:10"), 1), ("bob", at("10:20"), 2), ("ann", at("15:10"), 4))

    def read() -> None:
        lake.stream(LOCAL, pipeline)
        lake.final(pipeline)

    epoch = steps_of("an-epoch")
    assert made(epoch, read) == []
    DeltaTable(lake.path("events")).delete("user = 'bob'")
    assert made(steps_of("a-correction"), lambda: lake.stream(LOCAL, pipeline)) == []
    entry = {pipeline.name: PipelineEntry(object="flows:hours", start=DAY0)}
    config = lake.config.model_copy(update={"pipelines": entry})
    assert made(steps_of("a-restore"), lambda: restore(config, pipeline.name, "1", False, False)) == []
    assert lake.snapshot(pipeline).manifest.kind == "restore"
    recover, commits, *others = epoch
    lake.append(("ann", at("16:10"), 8))
    swapped = {step: epoch[step] for step in (commits, recover, *others)}
    assert made(swapped, read) == [recover], "an order that is wrong is found"


def test_every_arrow_of_an_epoch_has_a_row_with_the_file_that_does_it() -> None:
    arrows = drawn(EPOCH)
    assert len(arrows) == EPOCH.count("-->"), "each arrow stands as the test reads it"
    steps = re.findall(r"^- \*\*(\d+ .+?)\*\*:(.*?)(?=^- |\n\n)", LIFE, re.DOTALL | re.MULTILINE)
    rows = {label: " ".join(text.split()) for label, text in steps}
    assert {label for _, label, _ in arrows} == set(rows)
    assert [step for step, row in rows.items() if not any(names for _, names in named(row))] == []
    assert {step: wrong for step, row in rows.items() if (wrong := faults(row))} == {}


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`((?:pipelines|windowing|tests)/[\w/]+\.py)`", PAGE + LIFE))))
def test_every_file_that_the_page_names_exists(name: str) -> None:
    assert (ROOT / name).is_file()
