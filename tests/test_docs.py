"""The guide is correct: its code runs, its commands exist, its tables name every field, its links work."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pytest
from pydantic import BaseModel

import tidegate
from tidegate.pipelines.definition import epochs, late, rejects, results, windows
from tidegate.pipelines.definition.config import (
    Config,
    MetricsSettings,
    PipelineEntry,
    Suites,
    TaskArguments,
    WindowsTable,
)
from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.examples import starter
from tidegate.pipelines.examples.starter import clicks
from tidegate.pipelines.observe.report.values import span
from tidegate.pipelines.project.cli import cli
from tidegate.pipelines.project.cli.init import STARTER
from tidegate.pipelines.testing import PipelineHarness

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
GUIDE = ROOT / "docs" / "guide"
FIRST_PAGE = GUIDE / "getting-started.md"

EVERYWHERE = {"--config", "--json", "--output", "--debug", "--help"}
_INTERNAL = {"root", "file_name", "values", "session", "processes", "faulty"}


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)


def rows(page: str) -> str:
    return (GUIDE / page).read_text()


def items(page: str) -> dict[str, str]:
    """Return each list item of a page, with the items below it, by the code that it begins with."""
    text = rows(page)
    found = re.findall(r"^- `([^`]+)`(.*?)(?=^- |^#|^[A-Z`]|\Z)", text, re.DOTALL | re.MULTILINE)
    return {code: " ".join(rest.split()) for code, rest in found}


def commands(group: click.Group = cli, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        elif command is not None:
            yield (*path, name), command


COMMANDS = dict(commands())


def shown(page: Path) -> list[str]:
    """Return every `tidegate ...` in code, inline or in a block."""
    text = page.read_text()
    lines = [
        line for block in re.findall(r"^```\n(.*?)^```$", text, re.DOTALL | re.MULTILINE) for line in block.splitlines()
    ]
    inline = re.findall(r"`(tidegate [^`]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE))
    return [line.partition("#")[0].strip() for line in (*lines, *inline) if line.startswith("tidegate ")]


WIDTH = 120
LINED = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "tests").rglob("*.md"))]


def wide(text: str) -> list[int]:
    """Return the numbers of lines that are too long and could be broken: those outside code, of more than one word."""
    prose = re.sub(r"^ *```.*?^ *```", lambda code: "\n" * code[0].count("\n"), text, flags=re.DOTALL | re.MULTILINE)
    lines = enumerate(prose.splitlines(), 1)
    return [number for number, line in lines if len(line) > WIDTH and re.search(r"\S\s+\S", line.lstrip(" -*>"))]


@pytest.mark.parametrize("page", LINED, ids=name_of)
def test_the_lines_of_a_page_wrap(page: Path) -> None:
    assert wide(page.read_text()) == [], f"wrap at {WIDTH} columns; of a table with long cells make a list"


def test_a_line_that_could_be_broken_is_found() -> None:
    word = "w" * WIDTH
    assert wide(f"a {word}\n\n| {word} | b |\n```\n{word} {word}\n```\n- {word}w\nb {word}\n") == [1, 3, 8]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_to_a_file(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)[^)]*\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_index_leads_to_every_page_of_guide_operations_and_decisions() -> None:
    index = ROOT / "docs" / "README.md"
    found, left = set[Path](), [index]
    while left:
        page = left.pop()
        found.add(page)
        links = re.findall(r"\]\((?!https?:|#)([^)#]+\.md)", page.read_text())
        left += [to for link in links if (to := (page.parent / link).resolve()) not in found]
    folders = ("guide", "operations", "decisions")
    pages = {page for folder in folders for page in (ROOT / "docs" / folder).glob("*.md")}
    assert sorted(map(name_of, pages - found)) == []


@pytest.mark.parametrize("page", [page for page in PAGES if shown(page)], ids=name_of)
def test_every_command_that_is_shown_exists_with_its_options(page: Path) -> None:
    wrong = []
    for line in shown(page):
        words = shlex.split(line.replace("...", ""))[1:]
        path = max((path for path in COMMANDS if tuple(words[: len(path)]) == path), key=len, default=None)
        if path is None:
            groups = {path[0] for path in COMMANDS if len(path) > 1}
            wrong += [] if words == ["--help"] or (words[0] in groups and len(words) == 1) else [line]
            continue
        known = {
            option for parameter in COMMANDS[path].params for option in (*parameter.opts, *parameter.secondary_opts)
        }
        wrong += [line for word in words if word.startswith("--") and word not in known | EVERYWHERE]
    assert wrong == []


@pytest.mark.parametrize("package", ["pipelines", "expectations"])
def test_every_command_that_a_message_names_exists(package: str) -> None:
    groups = {path[:1] for path in COMMANDS if len(path) > 1}
    named = [
        (file.relative_to(ROOT).as_posix(), tuple(words.split()))
        for file in sorted((ROOT / package).rglob("*.py"))
        for words in re.findall(r"`tidegate ([^`\n]+)`", file.read_text())
    ]
    unknown = [
        f"{file}: {' '.join(words)}"
        for file, words in named
        if words not in groups and not any(words[: len(path)] == path for path in COMMANDS)
    ]
    assert unknown == []


def test_every_page_that_a_message_names_exists_and_has_the_section() -> None:
    named = {
        (file.relative_to(ROOT).as_posix(), page, section)
        for package in ("windowing", "pipelines", "expectations")
        for file in sorted((ROOT / package).rglob("*.py"))
        for page, section in re.findall(r'(docs/[\w/-]+\.md)(?:, "([^"]+)")?', file.read_text())
    }
    assert named
    wrong = [
        (file, page, section)
        for file, page, section in named
        if not (ROOT / page).exists() or (section and f"## {section}\n" not in (ROOT / page).read_text())
    ]
    assert wrong == []


@pytest.mark.parametrize("path", sorted(COMMANDS), ids=" ".join)
def test_the_command_line_page_has_every_command_with_every_option(path: tuple[str, ...]) -> None:
    name = " ".join(path)
    (item,) = [
        code + rest for code, rest in items("command-line.md").items() if f"{code} ".startswith(f"tidegate {name} ")
    ]
    options = {option for parameter in COMMANDS[path].params for option in parameter.opts if option.startswith("--")}
    assert {option for option in options - EVERYWHERE if option not in item} == set()


IN_SPARK = {"consuming.md", "notebook.md"}
"""Pages whose code needs a session, which tests/spark runs."""


@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page, "python") and page.name not in IN_SPARK], ids=name_of
)
def test_python_on_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tidegate.toml").touch()
    monkeypatch.chdir(tmp_path)
    # As the DAG file of getting-started is placed in its project.
    names: dict[str, object] = {"__file__": str(tmp_path / "dags" / "tidegate_dags.py")}
    for block in blocks(page, "python"):
        if "airflow" in block:
            pytest.importorskip("airflow")
        exec(compile(block, name_of(page), "exec"), names)


def test_the_files_of_the_first_page_are_those_of_a_new_project() -> None:
    shown = {block.partition("\n")[0].removeprefix("# "): block for block in blocks(FIRST_PAGE, "python")}
    for file in ("visits.py", "dags/tidegate_dags.py"):
        assert shown[file].partition("\n")[2] == (STARTER / f"{file}.txt").read_text()


def test_the_first_results_are_those_that_the_first_page_shows() -> None:
    names: dict[str, Any] = {}
    exec(compile((STARTER / "visits.py.txt").read_text(), "visits.py", "exec"), names)
    harness = PipelineHarness(names["visits"], clicks.SCHEMA)
    days = [datetime(2024, 3, day, tzinfo=UTC) for day in range(1, 1 + starter.DAYS)]
    sample = [row for day in days for row in clicks.clicks_of(day.date()).to_pylist()]
    for day in days:
        harness.backfill(sample, day, day + timedelta(days=1))
    newest_first = sorted(harness.final(), key=lambda row: row["window_end"], reverse=True)
    found = [
        [row["user"], span(row), *(str(row[name]) for name in ("epoch", "clicks", "landed_on", "cents"))]
        for row in newest_first
    ]
    shown = table_of(FIRST_PAGE, "user")
    assert shown == found[: len(shown)]


def table_of(page: Path, first: str) -> list[list[str]]:
    """Return the cells of the table of a page whose first column has this name."""
    (lines,) = re.findall(rf"^\| {first} \|.*\n\|[-|]*\n((?:\|.*\n)*)", page.read_text(), re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines.splitlines()]


def scope_of(page: Path) -> dict[str, Any]:
    """Return the names that the Python blocks of a page define, without its DAGs."""
    names: dict[str, Any] = {}
    for block in blocks(page, "python"):
        if "airflow" not in block:
            exec(compile(block, name_of(page), "exec"), names)
    return names


def test_delay_and_rework_of_late_data_are_as_its_table_says() -> None:
    page = GUIDE / "late-data.md"
    shown = [
        [float(first.removesuffix(" h")), float(final.removesuffix(" h")), *map(int, counts)]
        for _, _, first, final, *counts in table_of(page, "out-of-orderness")
    ]
    assert shown == scope_of(page)["outcomes"]


def test_the_recipe_corrects_a_day_as_its_table_says() -> None:
    page = GUIDE / "recipe.md"
    names = scope_of(page)
    harness = PipelineHarness(names["daily_revenue"], names["SCHEMA"])
    for rows in names["commits"]:
        harness.commit(rows, at=rows[-1]["at"])
        harness.run()
    columns = ("op", "pane", "clicks", "cents")
    found = [
        [row["shop"], f"{row['window_start']:%Y-%m-%d}", *(str(row[name]) for name in columns)]
        for row in harness.results()
        if row["window_start"] == names["FIRST"]
    ]
    assert table_of(page, "shop") == found
    visits = PipelineHarness(names["visits"], names["SCHEMA"])
    for rows in names["commits"]:
        visits.commit(rows, at=rows[-1]["at"])
        visits.run()
    assert [row["cents"] for row in visits.latest() if row["user"] == "bob"] == [1900]


def test_the_settings_of_the_recipe_are_for_its_pipelines() -> None:
    page = GUIDE / "recipe.md"
    (toml,) = blocks(page, "toml")
    config = Config.model_validate(tomllib.loads(toml))
    pipelines = {value.name for value in scope_of(page).values() if isinstance(value, Pipeline)}
    assert config.pipelines.keys() == pipelines
    assert {entry.object for entry in config.pipelines.values()} == {f"shop:{name}" for name in pipelines}
    assert not any(entry.catchup for entry in config.pipelines.values())


def test_what_other_tools_have_is_named_as_it_is_called_here() -> None:
    page = (GUIDE / "coming-from.md").read_text()
    named = set(re.findall(r"\b[A-Z][a-z]+[A-Z]\w+\b", "".join(re.findall(r"^\|[^|]*\|(.*)\|$", page, re.MULTILINE))))
    assert len(named) > 8
    assert {name for name in named if not hasattr(tidegate, name)} == set()


@pytest.mark.parametrize("model", [Config, MetricsSettings, PipelineEntry, Suites, TaskArguments, WindowsTable])
def test_the_configuration_page_has_every_key_with_its_default(model: type[BaseModel]) -> None:
    page = items("configuration.md")
    for block in blocks(GUIDE / "configuration.md", "toml"):
        Config.model_validate(tomllib.loads(block))
    for name, field in model.model_fields.items():
        if name in _INTERNAL:
            continue
        default = page[name].partition("): ")[0]
        if isinstance(field.default, bool | int | str) and field.default != "":
            said = str(field.default).lower() if isinstance(field.default, bool) else str(field.default)
            assert said in default.replace('"', "").replace("`", ""), f"{name}: {default}"


def test_the_pipelines_page_has_every_field() -> None:
    assert [name for name in Pipeline.__dataclass_fields__ if name not in items("pipelines.md")] == []


def test_the_results_page_has_every_column_of_every_table() -> None:
    page = rows("results.md")
    columns = {field.name for field in (*results.LEADING, *late.TRAILING, *rejects.TRAILING)}
    columns |= {*windows.PARTITIONS.values()}
    columns |= {
        name for name in epochs.SCHEMA.names if name not in ("parent", "shards", "phases", "run_id", "started_at")
    }
    columns -= {"timers_registered", "timers_fired", "timers_deleted", "open_windows", "processing_time"}
    assert {name for name in columns if f"`{name}`" not in page} == set()
