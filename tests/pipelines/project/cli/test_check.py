"""`tidegate snapshot check`: before a run, whether the code can go on, what it migrates, what is refused and why."""

from __future__ import annotations

import pytest

from tests.lake import EVENTS, Lake, at
from tests.pipelines.project.cli.project import Project

CODE = """
from dataclasses import replace
from tests.lake import session_pipeline
from tidegate.windowing import Count, Max, Sum

sessions = session_pipeline({options})
sessions = replace(sessions, compute=replace(sessions.compute, aggregate={aggregate}){more})
"""
SAME = "dict(events=Count(), total=Sum('value'))"


@pytest.fixture
def ran(project: Project) -> Project:
    """A pipeline with an open session, over a source table that is there."""
    Lake(project.folder).append(("ann", at("10:00"), 1))
    assert EVENTS.names == ["user", "at", "value"]
    project.by_hand.epoch(("ann", at("10:00"), 1), watermark=at("10:00"))
    return project


def with_code(project: Project, aggregate: str = SAME, options: str = "", more: str = "") -> None:
    code = CODE.format(aggregate=aggregate, options=options, more=more)
    (project.folder / "of_the_project.py").write_text(code)


def test_the_same_code_goes_on(ran: Project) -> None:
    told = ran.data("snapshot", "check", "sessions")
    assert (told["compatible"], told["same_code"], told["migrations"]) == (True, True, [])


def test_a_start_at_the_beginning_of_the_source_needs_no_snapshot(ran: Project) -> None:
    told = ran.data("snapshot", "check", "sessions", "none")
    assert (told["compatible"], told["epoch"]) == (True, None)


def test_an_added_and_a_dropped_aggregate_are_migrations(ran: Project) -> None:
    with_code(ran, "dict(events=Count(), largest=Max('value'))", more=", dropped=('total',)")
    told = ran.data("snapshot", "check", "sessions")
    assert told["same_code"] is False
    assert sorted(told["migrations"]) == ["'largest' is null for windows that are already open", "'total' is dropped"]
    ran.says(0, "the next epoch migrates the state", "snapshot", "check", "sessions")


def test_every_field_that_is_refused_is_named_with_a_way_out(ran: Project) -> None:
    with_code(ran, "dict(events=Count())", options="max_parallelism=64")
    told = ran.says(
        3,
        "max_parallelism is 128 in the snapshot and 64 in the code. Give the pipeline another name",
        "snapshot",
        "check",
        "sessions",
    )
    assert "contents 'acc_total' is" in told
    assert "dropped=(...)" in told
