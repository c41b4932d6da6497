"""The pages for contributors are correct: the files that they name exist and define the names next to them."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

from tidegate import windowing
from tidegate.pipelines.definition.counters import KEPT
from tidegate.pipelines.project.cli import _COMMANDS
from tidegate.windowing.aggregates import Aggregate
from tidegate.windowing.assigners import WindowAssigner
from tidegate.windowing.triggers import Trigger

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "CONTRIBUTING.md").read_text()

FILE = r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|md))`"
"""A file in a row of the table; names that it defines may follow in brackets."""

SUBJECTS = {
    "lateness",
    "a trigger",
    "an assigner",
    "an aggregate",
    "a counter",
    "a state column",
    "a column of a table",
    "a source",
    "a version of Spark or Delta",
    "a dependency",
    "a command",
    "a DAG",
}


def section(title: str) -> str:
    (text,) = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    return str(text)


def table() -> dict[str, str]:
    """The files that the list names, by subject."""
    items = re.findall(r"^- \*\*(.+?)\*\*\n(.*?)(?=^- |\Z)", section("Where do I change X"), re.DOTALL | re.MULTILINE)
    return {subject: " ".join(files.split()) for subject, files in items}


def named(row: str) -> Iterator[tuple[str, list[str]]]:
    """Return the files of a row, each with the names that it should define."""
    for file, names in re.findall(FILE + r"(?:\s+\(([^)]*)\))?", row):
        yield file, re.findall(r"`([\w.]+)`", names)


@cache
def defined(file: Path) -> frozenset[str]:
    """The names that a module defines, methods and fields as `Class.name`."""
    names = set[str]()
    for node in ast.parse(file.read_text()).body:
        names |= set(_targets(node))
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{name}" for part in node.body for name in _targets(part)}
    return frozenset(names)


def _targets(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        yield node.name
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    yield from (target.id for target in targets if isinstance(target, ast.Name))


def faults(row: str) -> list[str]:
    """Return the statements of a row that are wrong."""
    wrong = []
    for file, names in named(row):
        if not (ROOT / file).is_file():
            wrong.append(f"{file} does not exist")
        else:
            wrong += [f"{file} defines no {name}" for name in names if name not in defined(ROOT / file)]
    return wrong


def test_the_table_has_a_row_for_everything_that_is_often_changed() -> None:
    assert set(table()) == SUBJECTS


@pytest.mark.parametrize("subject", sorted(SUBJECTS))
def test_the_files_of_a_row_exist_and_define_what_it_names(subject: str) -> None:
    row = table()[subject]
    files = list(named(row))
    assert [file for file, names in files if names], "a row names something to look for"
    assert [file for file, _ in files if file.startswith(("docs/", "tests/"))], "and where it is described or tested"
    assert len(files) == row.count(".py`") + row.count(".md`"), "each file stands as the test reads it"
    assert faults(row) == []


LISTS: dict[str, tuple[type, tuple[str, ...]]] = {
    "a trigger": (
        Trigger,
        (
            "windowing/triggers/__init__.py",
            "windowing/__init__.py",
            "tests/windowing/contracts/test_triggers.py",
            "docs/reference/triggers.md",
            "docs/guide/triggers.md",
        ),
    ),
    "an assigner": (
        WindowAssigner,
        ("windowing/assigners/__init__.py", "windowing/__init__.py", "docs/reference/windows.md"),
    ),
    "an aggregate": (
        Aggregate,
        (
            "windowing/aggregates/__init__.py",
            "windowing/__init__.py",
            "tests/windowing/aggregates/test_both_forms.py",
            "docs/reference/aggregates.md",
            "docs/guide/aggregates.md",
        ),
    ),
}
"""Files that name every public class of a kind: the row of the kind names each of these files."""


@pytest.mark.parametrize("subject", LISTS)
def test_a_row_names_the_files_that_list_every_class_of_a_kind(subject: str) -> None:
    base, lists = LISTS[subject]
    assert set(lists) - {file for file, _ in named(table()[subject])} == set()
    public = {name: getattr(windowing, name) for name in windowing.__all__}
    classes = [name for name, value in public.items() if isinstance(value, type) and issubclass(value, base)]
    assert len(classes) > 10
    unlisted = [
        f"{file}: {name}"
        for file in lists
        for name in classes
        if not re.search(rf"\b{name}\b", (ROOT / file).read_text())
    ]
    assert unlisted == []


def test_every_command_has_the_file_and_the_entry_that_the_row_names() -> None:
    assert [
        file for file in _COMMANDS.values() if not (ROOT / "pipelines" / "project" / "cli" / f"{file}.py").is_file()
    ] == []
    guide = (ROOT / "docs" / "guide" / "command-line.md").read_text()
    assert [name for name in _COMMANDS if not re.search(rf"\b{name}\b", guide)] == []


def test_every_counter_that_is_kept_stands_in_the_guide() -> None:
    guide = (ROOT / "docs" / "guide" / "results.md").read_text()
    assert [counter.name for counter in KEPT if not re.search(rf"\b{counter.name}\b", guide)] == []


def test_a_row_that_is_wrong_is_found() -> None:
    assert faults("`pipelines/nowhere.py` (`Nothing`)") == ["pipelines/nowhere.py does not exist"]
    (fault,) = faults("`pipelines/errors.py` (`TidegateError`, `Nothing`)")
    assert fault == "pipelines/errors.py defines no Nothing"


def test_the_folders_of_the_layout_exist() -> None:
    folders = re.findall(r"`(\w+)/`", section("Layout"))
    assert {"windowing", "pipelines", "expectations", "tidegate", "tests", "docs"} <= set(folders)
    assert [folder for folder in folders if not (ROOT / folder).is_dir()] == []


def test_the_commands_of_the_page_are_targets_tests_and_programs() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:`|^)make ([a-z-]+)", PAGE, re.MULTILINE)) - targets == set()
    (block,) = re.findall(r"^```\n(.*?)^```$", section("Test a change in a minute"), re.DOTALL | re.MULTILINE)
    paths = re.findall(
        r"(?:tests|docs)[\w/]*(?:\.py)?\b", block.replace("tests/conformance/*.json", "tests/conformance")
    )
    assert len(paths) >= 5
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"])
def test_every_link_of_a_page_leads_to_a_file_and_a_heading(page: str) -> None:
    broken = []
    for file, heading in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", (ROOT / page).read_text()):
        target = ROOT / (file or page)
        titles = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE) if target.is_file() else []
        anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
        if not target.exists() or (heading and heading not in anchors):
            broken.append(f"{file}#{heading}")
    assert broken == []


def test_the_version_has_its_section_in_the_changelog_and_the_newest_comes_first() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    sections = re.findall(
        r"^## (\d+)\.(\d+)\.(\d+) \(\d{4}-\d\d-\d\d\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    assert ".".join(sections[0]) == version
    assert sorted(sections, key=lambda parts: [int(part) for part in parts], reverse=True) == sections


def test_what_the_security_page_says_is_switched_off_is() -> None:
    page = (ROOT / "SECURITY.md").read_text()
    assert "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED=False" in page
    assert "GX_ANALYTICS_ENABLED=false" in page
    assert 'AIRFLOW__USAGE_DATA_COLLECTION__ENABLED: "False"' in (ROOT / "docker-compose.yml").read_text()
    assert '"AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False"' in (ROOT / "pipelines/airflow/embedded.py").read_text()
    assert '"GX_ANALYTICS_ENABLED"] = "false"' in (ROOT / "expectations/__init__.py").read_text()
    parts = [
        file.read_text()
        for folder in ("windowing", "pipelines", "expectations")
        for file in (ROOT / folder).rglob("*.py")
    ]
    assert not re.search(r"^\s*(?:import|from) (?:pickle|cloudpickle|dill)\b", "\n".join(parts), re.MULTILINE)


def test_the_security_page_has_a_private_way_and_one_for_repositories_without_it() -> None:
    text = " ".join((ROOT / "SECURITY.md").read_text().split("## Nothing phones home")[0].split())
    assert "**Report a vulnerability**" in text
    assert "write nothing about the vulnerability" in text


def test_the_hooks_of_a_commit_run_the_programs_of_the_environment() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert [repo["repo"] for repo in config["repos"]] == ["local"], "a program from elsewhere would be another version"
    hooks = {hook["id"]: hook for hook in config["repos"][0]["hooks"]}
    assert set(hooks) == {"ruff-check", "ruff-format", "codespell", "mypy"}
    lint = re.search(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert lint is not None
    for hook in hooks.values():
        program = hook["entry"].split()[0]
        assert hook["language"] == "system"
        assert (ROOT / program).exists(), f"{program}: run make env"
        assert program.replace(".venv/bin", "$(BIN)") in lint[1], f"make lint does not run {program}"


def test_the_words_of_code_and_pages_are_spelled_right() -> None:
    done = subprocess.run([ROOT / ".venv/bin/codespell"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout + done.stderr == ""
