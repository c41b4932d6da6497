"""Commands are made from the methods of a project: names, types, defaults and help are those of the method."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import click
import pytest

from tidegate.pipelines.observe.report.answer import Answer
from tidegate.pipelines.project.cli import cli
from tidegate.pipelines.project.cli.declared import command_of
from tidegate.pipelines.project.given import Count, KeyGiven, Length, Moment, Number, Seconds
from tidegate.pipelines.run.limits import EpochLimits
from tidegate.pipelines.run.stopping import StopRequest


def commands(group: click.Group = cli, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


ALL = dict(commands())


@pytest.mark.parametrize("name", ALL)
def test_every_option_has_a_help_text_that_names_options_and_ends_as_a_sentence(name: str) -> None:
    for option in ALL[name].params:
        if isinstance(option, click.Option):
            text = option.help or ""
            assert text.endswith("."), (option.name, text)
            assert "`" not in text, (option.name, text)
            assert "None" not in text, (option.name, text)
            assert "True" not in text, (option.name, text)


def answered(
    self: object,
    pipeline: str,
    key: KeyGiven = (),
    start: Moment | None = None,
    *,
    words: str,
    all_rows: bool = False,
    from_: Literal["beginning", "now"] | None = None,
    limit: Number | None = 20,
    most: Count | None = None,
    patience: Seconds = 1.5,
    gap: Iterable[Length] = (),
    limits: EpochLimits | None = None,
    stop: StopRequest | None = None,
) -> Answer:
    """Return what was asked, as `start` has it, and return it again.

    Some more.

    Args:
        pipeline: name of the pipeline.
        key: values of the key columns.
        start: first time.
        words: what was said.
        all_rows: True to return all rows, with `limit` or without.
        from_: where to begin; None for `beginning`.
        limit: largest number of rows; None for all.
        most: largest number of all; None for the number in tidegate.toml.
        patience: seconds to wait.
        gap: session gaps to evaluate.
        limits: limits on what one epoch reads.
        stop: a request.

    Raises:
        UsageError: never.
    """
    raise NotImplementedError


def test_a_signature_becomes_arguments_and_options() -> None:
    command = command_of(("answered",), answered)
    params = {param.name: param for param in command.params}
    assert [name for name, param in params.items() if isinstance(param, click.Argument)] == ["pipeline", "key"]
    assert params["key"].nargs == -1
    assert {name: params[name].opts for name in ("start", "all_rows", "from_", "words")} == {
        "start": ["--start"],
        "all_rows": ["--all-rows"],
        "from_": ["--from"],
        "words": ["--words"],
    }
    assert params["words"].required
    assert "stop" not in params
    assert [opt for name, param in params.items() if str(name).startswith("max_") for opt in param.opts] == [
        f"--max-{each}-per-epoch" for each in ("files", "bytes", "commits", "rows")
    ]
    assert isinstance(params["from_"].type, click.Choice)
    assert [params[name].type.min for name in ("limit", "most", "patience")] == [0, 1, 0]  # type: ignore[attr-defined]
    assert [params[name].default for name in ("limit", "patience")] == [20, 1.5]


def test_a_docstring_becomes_help() -> None:
    command = command_of(("answered",), answered)
    helps = {param.name: param.help for param in command.params if isinstance(param, click.Option)}
    assert helps["all_rows"] == "Return all rows, with --limit or without."
    assert helps["from_"] == "Where to begin. Default: beginning."
    assert helps["gap"] == "Session gaps to evaluate; may be repeated."
    assert helps["limit"] == "Largest number of rows. 0 for all."
    assert helps["most"] == "Largest number of all. Default: the number in tidegate.toml."
    assert command.help == (
        "Show what was asked, as --start has it, and show it again.\n\nSome more.\n\n"
        r"KEY: values of the key columns. \N is a null."
    )
