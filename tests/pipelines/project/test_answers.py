"""Every verb of a project answers with a table or with facts and tables, as JSON and on the terminal as declared."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date, timedelta
from operator import attrgetter
from typing import Any

import pytest

from tests.docs.answers import PAGE, answered, kinds, methods, page
from tests.lake import Lake, at, session_pipeline
from tidegate.pipelines.observe.report.answer import Answer, Facts, Listing
from tidegate.pipelines.observe.report.columns import Column, Grid
from tidegate.pipelines.project.driver import Alive, StoppedDriver, Unlocked

DAY = date(2024, 3, 1)
VERBS = dict(methods())


def test_every_verb_returns_a_frozen_value_that_declares_its_columns() -> None:
    known = kinds()
    for name, method in VERBS.items():
        for kind in map(known.__getitem__, answered(method)):
            assert kind.__dataclass_params__.frozen, name  # type: ignore[attr-defined]
            if issubclass(kind, Facts):
                declared = {column.name for column in kind.facts}
                assert declared, name
                assert {word.partition(":")[0] for word in re.findall(r"{(.*?)}", kind.says)} <= declared, name
                assert not declared & {*kind.holds}, name


def test_the_reference_has_the_declarations() -> None:
    assert PAGE.read_text("utf-8") == page()


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answer]:
    lake = Lake(tmp_path_factory.mktemp("answers"))
    lake.append(("ann", at("00:05"), 1), ("bob", at("00:10"), 2), ("ann", at("12:00"), 3))
    project = lake.project(session_pipeline(), session_pipeline(name="others"))
    day = DAY, DAY + timedelta(days=1)
    found: dict[str, Answer] = {"plan": project.plan("sessions", *day), "backfill": project.backfill("sessions", *day)}
    lake.append(("ann", at("00:25"), 16), ("bob", at("23:00", 2), 1))
    found["stream"] = project.stream("sessions")
    project.stream("others")
    for name in (
        "results",
        "runs",
        "why",
        "explain",
        "late.summary",
        "late.reopen",
        "snapshots.list",
        "snapshots.show",
    ):
        found[name] = attrgetter(name)(project)("sessions")
    found |= {
        "list": project.list(),
        "verify": project.verify("sessions"),
        "advise": project.advise("sessions"),
        "size": project.size("sessions"),
        "trace": project.trace("sessions", ("ann",)),
        "snapshots.diff": project.snapshots.diff("sessions", 1),
        "snapshots.check": project.snapshots.check("sessions"),
        "savepoints.create": project.savepoints.create("sessions", "now"),
        "savepoints.list": project.savepoints.list("sessions"),
        "savepoints.delete": project.savepoints.delete("sessions", "now"),
        "tables.lineage": project.tables.lineage("sessions"),
        "tables.query": project.tables.query("sessions"),
        "tables.optimize": project.tables.optimize("sessions"),
        "tables.vacuum": project.tables.vacuum("sessions"),
        "tables.rebuild_windows": project.tables.rebuild_windows("sessions"),
        "late.prune": project.late.prune("sessions", days=0),
        "forget": project.forget("sessions", ("bob",)),
        "compare": project.compare("sessions", "others"),
        "source.reset": project.source.reset("sessions", keep_results=True, force=True, dry_run=True),
        "driver.alive": Alive("sessions", 1.0),
        "driver.stop": StoppedDriver("sessions", "a driver"),
        "driver.unlock": Unlocked("sessions", "a driver"),
        "restore": project.restore("sessions", "latest"),
        "restore --restart": project.restore("sessions", restart=True, dry_run=True),
    }
    return found


def test_no_verb_is_left_out(answers: dict[str, Answer]) -> None:
    # These need optional libraries or a source without changes; their own tests show them.
    elsewhere = {"quality.check", "quality.acknowledge", "report", "replay"}
    assert {*VERBS} - {*answers} == elsewhere


def shown(answer: Answer) -> Iterator[Grid]:
    yield from (each for each in answer.shown() if isinstance(each, Grid))


def test_json_and_terminal_have_the_declared_columns(answers: dict[str, Answer]) -> None:
    for name, answer in answers.items():
        content: Any = answer.to_dict()
        grids = list(shown(answer))
        if isinstance(answer, Listing):
            tables = [answer.main()]
            assert all([*row] == names(answer.main().columns) for row in content), name
            assert names(answer.columns) == [
                each for each in names(answer.main().columns) if each in names(answer.columns)
            ]
        else:
            assert isinstance(answer, Facts)
            tables = list(answer.tables())
            assert [*content] == [*names(answer.facts), *(table.name for table in tables)], name
            assert [table.name for table in tables] == [*answer.holds], name
            for table in tables:
                assert all([*row] == names(table.columns) for row in content[table.name]), name
            if answer.title:
                # Facts that are not known are left out.
                assert {head for head, _ in grids.pop(0).rows} <= {column.title for column in answer.facts}, name
        visible = [table for table in tables if table.is_shown]
        assert len(grids) == len(visible), name
        for table, grid in zip(visible, grids, strict=True):
            titles = {column.title for column in table.columns if not column.is_spread}
            spread = [column for column in table.columns if column.is_spread]
            assert {*grid.columns} <= titles or spread, name
            required = {each.title for each in table.columns if each.title and not (each.is_optional or each.is_spread)}
            assert required <= {*grid.columns}, name
        assert answer.to_arrow().column_names, name


def names(columns: tuple[Column, ...]) -> list[str]:
    return [column.name for column in columns]
