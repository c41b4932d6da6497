"""Every remedy is a command that the command line takes, and a call that `Project` takes."""

from __future__ import annotations

import ast
import inspect
import pickle
import shlex
from collections.abc import Iterator
from typing import Any

import click
import pytest

from tidegate.pipelines.errors import Refused, RowsRewritten
from tidegate.pipelines.project.cli import cli
from tidegate.pipelines.project.project import Project
from tidegate.pipelines.remedy import Act, Remedy
from tidegate.pipelines.rendering import CALLS, command, fields, python, sentence, spelled_as, with_remedies

DAY = 86_400_000
TRACE = Remedy(Act.TRACE, "visits", key=("-5", "ann o"))
RESTORE = Remedy(Act.RESTORE, "visits", 3)


def _remedies() -> Iterator[Remedy]:
    """Yield each kind with values in its fields, and with none, so that it shows placeholders."""
    for act, call in CALLS.items():
        if call.verb:
            yield Remedy(act, "visits", 3, ("ann",), 0, DAY)
            yield Remedy(act, at={"restore": "savepoint:kept", "report": 3}.get(call.verb), key=None)


REMEDIES = [*_remedies()]


def parsed(words: list[str]) -> tuple[str, dict[str, Any]]:
    """Parse the words of a command as the command line does; return its name and the values of its parameters."""
    of: click.Command = cli
    context, names = click.Context(cli), []
    while isinstance(of, click.Group):
        found = of.get_command(context, words[0])
        assert found is not None, words
        names.append(words[0])
        of, words, context = found, words[1:], click.Context(found, parent=context, info_name=words[0])
    return " ".join(names), of.make_context("tidegate", words).params


def test_every_kind_has_words() -> None:
    assert set(CALLS) == set(Act)


@pytest.mark.parametrize("remedy", REMEDIES, ids=command)
def test_the_command_line_takes_every_command(remedy: Remedy) -> None:
    program, *words = shlex.split(command(remedy))
    verb, params = parsed(words)
    call = CALLS[remedy.act]
    assert (program, verb) == ("tidegate", call.verb)
    for name, value in call.options.items():
        assert str(params[name]) == str(value)


@pytest.mark.parametrize("remedy", REMEDIES, ids=command)
def test_the_project_takes_every_call(remedy: Remedy) -> None:
    if remedy.act is Act.SET_UP:
        assert python(remedy) == "tidegate setup"
        return
    called = ast.parse(python(remedy), mode="eval").body
    assert isinstance(called, ast.Call)
    method: Any = Project(warehouse="warehouse")
    for name in ast.unparse(called.func).split(".")[1:]:
        method = getattr(method, name)
    inspect.signature(method).bind(*called.args, **{each.arg or "": each.value for each in called.keywords})


def test_values_are_spelled_as_each_of_the_two_needs_them() -> None:
    assert command(TRACE) == "tidegate trace visits -- -5 'ann o'"
    assert python(TRACE) == 'project.trace("visits", ("-5", "ann o"))'
    assert command(Remedy(Act.REOPEN_FROM, "visits", start=DAY)) == (
        "tidegate late reopen visits --start 1970-01-02T00:00:00Z"
    )
    assert command(Remedy(Act.RESTORE_FROM, "new", "old")) == "tidegate restore new --from old"
    assert python(Remedy(Act.RESTORE_FROM, "new", "old")) == 'project.restore("new", from_="old")'
    assert python(Remedy(Act.RERUN_ALL)) == (
        'project.backfill("PIPELINE", start=START, end=END, again=True, and_following=True)'
    )
    assert fields(RESTORE) == {"act": "restore", "pipeline": "visits", "at": 3, "command": "tidegate restore visits 3"}
    assert fields(Remedy(Act.NEW_NAME, "visits")) == {"act": "new_name", "pipeline": "visits"}


def test_a_message_ends_with_its_remedies_in_the_spelling_of_the_process() -> None:
    error = Refused("table state is gone", RESTORE, Remedy(Act.RESTART, "visits"), RESTORE)
    assert str(error) == (
        'table state is gone. Go back to epoch 3: `project.restore("visits", 3)`; or compute everything again from the '
        'source: `project.restore("visits", restart=True)`'
    )
    with spelled_as(command):
        assert str(error).endswith("again from the source: `tidegate restore visits --restart`")
    assert str(error).endswith("restart=True)`")
    assert with_remedies("no page", [RESTORE], command) == "no page. Go back to epoch 3: `tidegate restore visits 3`"
    assert str(Refused("no way")) == "no way"


def test_a_snapshot_is_called_by_its_name() -> None:
    assert sentence([Remedy(Act.RESTORE, "visits", "latest")]).startswith("Go back to the newest snapshot: ")
    assert sentence([Remedy(Act.RESTORE, "visits", "savepoint:a")]).startswith("Go back to savepoint a: ")


def test_an_error_crosses_processes_with_its_remedies() -> None:
    error = pickle.loads(pickle.dumps(RowsRewritten("can't", RESTORE, TRACE, concerns=[(0, 5)])))
    assert (error.message, error.remedies, error.concerns) == ("can't", (RESTORE, TRACE), ((0, 5),))
