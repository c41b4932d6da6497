"""Remedies in words: as commands for the command line and Airflow, as calls for Python, as fields for JSON.

Messages are spelled for the process that shows them: in Python unless the command line says otherwise (`spelled_as`).
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import NamedTuple, TypeAlias

from tidegate.pipelines.remedy import Act, Remedy

Spelling: TypeAlias = Callable[[Remedy], str]


class HowTo(NamedTuple):
    """How an act is done.

    Args:
        purpose: what it does, in the imperative; `{at}` and other fields of the remedy are inserted.
        verb: words of the command; empty if no command does it.
        options: options with fixed values, by their name in Python.
        needs: fields of the remedy that are arguments or options, shown as placeholders if they are not known.
        at: option that takes `at`; empty if `at` is an argument.
        key: True if the key is an option instead of an argument.
        flag: option that only the command line has.
    """

    purpose: str
    verb: str = ""
    options: Mapping[str, object] = {}
    needs: tuple[str, ...] = ()
    at: str = ""
    key: bool = False
    flag: str = ""


_NOW = "--available-now"

CALLS: Mapping[Act, HowTo] = {
    Act.FIRST_BACKFILL: HowTo("backfill it", "backfill", needs=("start", "end")),
    Act.STREAM: HowTo("run it as a stream", "stream", flag=_NOW),
    Act.READ_ON: HowTo("read the source's newer versions first, then run this again", "stream", flag=_NOW),
    Act.CATCH_UP: HowTo("let {pipeline} read them too", "stream", flag=_NOW),
    Act.END_INPUT: HowTo("end the input of the stream", "stream", {"end_of_input": True}, flag=_NOW),
    Act.STREAM_FROM_SCRATCH: HowTo(
        "compute it from the source's first commit", "stream", {"restore": "none"}, flag=_NOW
    ),
    Act.BACKFILL: HowTo("backfill that time", "backfill", needs=("start", "end")),
    Act.END_BACKFILL: HowTo("end the input of the backfill", "backfill", {"end_of_input": True}),
    Act.RERUN_STALE: HowTo(
        "run the stale intervals again", "backfill", {"and_following": True}, needs=("start", "end")
    ),
    Act.RERUN_FROM: HowTo(
        "run that interval and all later ones again",
        "backfill",
        {"again": True, "and_following": True},
        needs=("start", "end"),
    ),
    Act.RERUN_ALL: HowTo(
        "run everything again from the first interval",
        "backfill",
        {"again": True, "and_following": True},
        needs=("start", "end"),
    ),
    Act.STOP: HowTo("stop that driver", "driver stop"),
    Act.UNLOCK: HowTo("if no driver is running, remove the lease", "driver unlock"),
    Act.RESTORE: HowTo("go back to {at}", "restore", needs=("at",)),
    Act.RESTORE_BACKFILL: HowTo(
        "pause or stop the stream, and go back to {at}, the backfill's newest", "restore", needs=("at",)
    ),
    Act.RESTORE_AND_BACKFILL: HowTo("go back to {at}, and backfill from {start} on", "restore", needs=("at",)),
    Act.RESTORE_TABLES: HowTo("restore all tables from {at}", "restore", {"tables": True}, needs=("at",)),
    Act.RESTORE_FROM: HowTo("continue from pipeline {at}", "restore", needs=("from_",), at="from_"),
    Act.RESTART: HowTo("compute everything again from the source", "restore", {"restart": True}),
    Act.LIST_SNAPSHOTS: HowTo("restore another snapshot; this lists them", "snapshots list"),
    Act.LIST_SAVEPOINTS: HowTo("restore a savepoint; this lists them", "savepoints list"),
    Act.DELETE_SAVEPOINT: HowTo("delete the savepoint", "savepoints delete", needs=("at",)),
    Act.COPY_AGAIN: HowTo("copy the whole folder of the savepoint again, or delete it"),
    Act.RESET_SOURCE: HowTo("continue with the new table", "source reset", {"keep_results": True}),
    Act.BUILD_WINDOWS: HowTo("build table windows from table results", "tables rebuild-windows"),
    Act.REOPEN: HowTo("reopen the late rows", "late reopen", needs=("key",), key=True),
    Act.REOPEN_FROM: HowTo("reopen those from {start} on", "late reopen", needs=("start",)),
    Act.PRUNE_LATE: HowTo("remove these rows", "late prune", {"days": 0}),
    Act.SHOW_LATE: HowTo("look at the late rows", "late summary"),
    Act.FORGET: HowTo("erase the key", "forget", needs=("key",)),
    Act.OPTIMIZE: HowTo("merge the small files", "tables optimize"),
    Act.VACUUM: HowTo("remove the files that nothing needs", "tables vacuum"),
    Act.EXPLAIN: HowTo("see how the pipeline runs, and why", "explain"),
    Act.WHY: HowTo("see what windows are waiting for", "why", needs=("key",), key=True),
    Act.TRACE: HowTo("see what happened to the key", "trace", needs=("key",)),
    Act.TRACE_WINDOW: HowTo("see how a window was computed", "trace", needs=("key", "window"), at="window"),
    Act.VERIFY: HowTo("compare windows with the source", "verify"),
    Act.CHECK: HowTo("check the newest snapshot", "quality check"),
    Act.CHECK_ALL: HowTo("check every window", "quality check", {"all": True}),
    Act.REPORT: HowTo("write the run report", "report", needs=("epoch",), at="epoch"),
    Act.LATENESS_PAGE: HowTo("write the lateness curve", "advise", {"page": True}),
    Act.LINEAGE: HowTo("see where the data comes from", "tables lineage"),
    Act.SET_UP: HowTo("get Delta's jars once, with access to Maven Central", "setup"),
    Act.NEW_NAME: HowTo("backfill a pipeline with another name"),
    Act.MOVE_AWAY: HowTo("move the folder of table {at} away; it is created again when it is needed"),
    Act.KEEP_STREAM: HowTo("to keep the stream, pause the DAG {pipeline}__backfill"),
    Act.RETAIN_MORE: HowTo(
        "for the next time, retain more snapshots: `retain_snapshots` and `retain_days` in tidegate.toml"
    ),
}

_COMMAND_ONLY = {Act.SET_UP}
"""What concerns no pipeline, and has no method."""


class _Placeholder(str):
    """The name of a value that the user has to choose."""


def command(remedy: Remedy) -> str:
    """Return the command that does it, such as `tidegate restore visits --restart`."""
    call, key = CALLS[remedy.act], _key(remedy)
    words = ["tidegate", *call.verb.split(), *map(str, _positional(remedy))]
    for name, value in _options(remedy).items():
        option = f"--{name.rstrip('_').replace('_', '-')}"
        words += [option] if value is True else [option, str(value)]
    words += [call.flag] if call.flag else []
    if call.key:
        return shlex.join([*words, *(word for text in key for word in ("--key", text))])
    # A key may look like an option.
    return shlex.join([*words, *(["--"] if any(text.startswith("-") for text in key) else []), *key])


def python(remedy: Remedy) -> str:
    """Return the call that does it, such as `project.restore("visits", restart=True)`; a command if no call does."""
    if remedy.act in _COMMAND_ONLY:
        return command(remedy)
    call, key = CALLS[remedy.act], _key(remedy)
    arguments = [*map(_literal, _positional(remedy))]
    if key:
        values = _literal(key[0]) if len(key) == 1 else f"({', '.join(map(_literal, key))})"
        arguments.append(f"key={values}" if call.key else values)
    arguments += [f"{name}={_literal(value)}" for name, value in _options(remedy).items()]
    method = call.verb.replace(" ", ".").replace("-", "_")
    return f"project.{method}({', '.join(arguments)})"


def fields(remedy: Remedy) -> dict[str, object]:
    """Return the fields that a remedy has, and its command, for JSON."""
    given = {name: value for name, value in asdict(remedy).items() if value not in (None, ())}
    return {**given, "command": command(remedy)} if CALLS[remedy.act].verb else given


def _positional(remedy: Remedy) -> list[object]:
    call = CALLS[remedy.act]
    at = [_Placeholder("NAME") if remedy.at is None else remedy.at] if "at" in call.needs else []
    return [*([] if remedy.act in _COMMAND_ONLY else [remedy.pipeline]), *at]


def _key(remedy: Remedy) -> tuple[str, ...]:
    if "key" not in CALLS[remedy.act].needs:
        return ()
    return (_Placeholder("KEY"),) if remedy.key is None else remedy.key


def _options(remedy: Remedy) -> dict[str, object]:
    call = CALLS[remedy.act]
    named = {"start": _time(remedy.start), "end": _time(remedy.end), call.at: remedy.at}
    needed = {name: named.get(name) for name in call.needs if name not in ("at", "key")}
    return {
        name: _Placeholder(name.rstrip("_").upper()) if value is None else value for name, value in needed.items()
    } | {**call.options}


def _time(moment: int | None) -> str | None:
    if moment is None:
        return None
    # Reading the settings needs errors, but no windows.
    from tidegate.windowing.time import show_millis

    return show_millis(moment)


def _literal(value: object) -> str:
    if isinstance(value, _Placeholder):
        return value
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


_spelling: Spelling = python


@contextmanager
def spelled_as(spelling: Spelling) -> Iterator[None]:
    """Spell the remedies in messages of this process in another way, while the body runs."""
    global _spelling
    before, _spelling = _spelling, spelling
    try:
        yield
    finally:
        _spelling = before


def spelled(remedy: Remedy) -> str:
    """Return what a user enters, in backquotes, as this process spells it."""
    return f"`{_spelling(remedy)}`"


def purpose(remedy: Remedy) -> str:
    """Return what a remedy does, in the imperative: `compute everything again from the source`."""
    at = f"epoch {remedy.at}" if isinstance(remedy.at, int) else _SNAPSHOTS.get(str(remedy.at), str(remedy.at))
    words = {"pipeline": remedy.pipeline, "at": at.replace("savepoint:", "savepoint "), "start": _time(remedy.start)}
    return CALLS[remedy.act].purpose.format(**words)


_SNAPSHOTS = {"latest": "the newest snapshot"}


def sentence(remedies: Iterable[Remedy], spelling: Spelling | None = None) -> str:
    """Return the remedies as one sentence without its full stop, spelled as this process does, or in another way."""
    ways = [
        f"{purpose(each)}: `{(spelling or _spelling)(each)}`" if CALLS[each.act].verb else purpose(each)
        for each in dict.fromkeys(remedies)
    ]
    return f"{ways[0][0].upper()}{'; or '.join(ways)[1:]}" if ways else ""


def with_remedies(message: str, remedies: Iterable[Remedy], spelling: Spelling | None = None) -> str:
    """Return a message followed by the remedies, if there are any."""
    ways = sentence(remedies, spelling)
    return f"{message.rstrip('.')}. {ways}" if ways else message
