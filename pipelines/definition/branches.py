"""Branches of a pipeline: its name, the settings that it may change, and the note in its folder.

A branch is a separate pipeline in the folder `PIPELINE@BRANCH`: the code of the pipeline with other settings of time.
The note in the folder has these settings. It is written last, so a branch without a note is incomplete.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.definition.config.opened import warehouse_of
from tidegate.pipelines.definition.names import branch_of, pipeline_of
from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.errors import Refused, UsageError
from tidegate.windowing.assigners import EventTimeSessionWindows
from tidegate.windowing.compute import Windows
from tidegate.windowing.time import Millis

if TYPE_CHECKING:
    from tidegate.pipelines.storage.warehouse import Warehouse

_NOTE = "branch.json"


@dataclass(frozen=True, slots=True)
class BranchNote:
    """The note of a complete branch.

    Args:
        settings: the changed settings by name, milliseconds.
        epoch: the epoch of the pipeline whose snapshot the branch starts from.
        run_id: run of the newest epoch of the branch when it was created.
        line: the lineage of that epoch.
        begun: the newest epoch of the branch when it was created.
        table_id: Delta id of the pipeline's table `state`.
        created_at: int64 epoch milliseconds.
    """

    settings: dict[str, Millis]
    epoch: int
    run_id: str
    line: tuple[tuple[int, int], ...]
    begun: int
    table_id: str
    created_at: Millis


def read_note(warehouse: Warehouse, name: str) -> BranchNote | None:
    """Return the note of a branch; None if there is no complete branch with that name."""
    folder = warehouse.path(name)
    if _NOTE not in warehouse.names(folder):
        return None
    fields = json.loads(warehouse.read_text(folder, _NOTE))
    return BranchNote(**{**fields, "line": tuple((first, last) for first, last in fields["line"])})


def write_note(warehouse: Warehouse, name: str, note: BranchNote) -> None:
    """Write the note of a branch, which makes it complete."""
    folder = warehouse.path(name)
    warehouse.replace_file(folder, _NOTE, json.dumps(asdict(note)).encode())
    warehouse.make_durable(folder)


def remove_note(warehouse: Warehouse, name: str) -> None:
    """Remove the note of a branch, so that nothing runs the branch any more."""
    warehouse.delete_file(warehouse.path(name), _NOTE)


def branches_of(warehouse: Warehouse, pipeline: str) -> list[str]:
    """Return the names of a pipeline's branches, `PIPELINE@BRANCH`, including incomplete ones."""
    return [folder for folder in warehouse.folders(warehouse.uri) if pipeline_of(folder) == pipeline != folder]


def check_no_branches(warehouse: Warehouse, pipeline: str, refused: str) -> None:
    """Refuse what can't be done while a pipeline has branches.

    Args:
        warehouse: the warehouse.
        pipeline: name of the pipeline.
        refused: a clause that says what can't be done, and why.

    Raises:
        Refused: there are branches; the message names the command that deletes the first.
    """
    if names := branches_of(warehouse, pipeline):
        raise Refused(
            f"pipeline {pipeline!r} has branches ({', '.join(names)}), and {refused}. Delete them, then run the "
            f"command again: `tidegate branch {pipeline} {branch_of(names[0])} --delete`"
        )


def no_branch(warehouse: Warehouse, name: str) -> UsageError:
    """Return the error for a branch that does not exist or is incomplete."""
    pipeline = pipeline_of(name)
    names = ", ".join(branch_of(each) or "" for each in branches_of(warehouse, pipeline)) or "none"
    return UsageError(
        f"pipeline {pipeline!r} has no complete branch {branch_of(name)!r}; its branches: {names}. "
        f"`tidegate branch {pipeline} {branch_of(name)} --set SETTING=LENGTH` creates one"
    )


def branch_pipeline(config: Config, name: str, pipeline: Pipeline) -> Pipeline:
    """Return the pipeline of a branch: that of the code, with the branch's name and settings.

    Args:
        config: the project.
        name: `PIPELINE@BRANCH`.
        pipeline: the pipeline of the code.

    Raises:
        UsageError: there is no such branch.
    """
    warehouse = warehouse_of(config)
    note = read_note(warehouse, name)
    if note is None:
        raise no_branch(warehouse, name)
    return replace(with_settings(pipeline, note.settings), name=name)


@dataclass(frozen=True, slots=True)
class _Setting:
    """A setting of time that a branch may change.

    Args:
        of: returns its value in a pipeline, milliseconds; None if the pipeline has no such setting.
        changed: returns the pipeline with another value.
        needs: what a pipeline needs to have it, in words.
        may_be_added: True if a pipeline whose value is None can get one.
    """

    of: Callable[[Pipeline], Millis | None]
    changed: Callable[[Pipeline, Millis], Pipeline]
    needs: str
    may_be_added: bool = False


def _lateness(pipeline: Pipeline) -> Millis | None:
    windows = pipeline.compute
    by_event_time = isinstance(windows, Windows) and windows.assigner.is_event_time
    return windows.lateness if by_event_time and isinstance(windows, Windows) else None


def _with_lateness(pipeline: Pipeline, value: Millis) -> Pipeline:
    assert isinstance(pipeline.compute, Windows)
    return replace(pipeline, compute=replace(pipeline.compute, allowed_lateness=value))


def _gap(pipeline: Pipeline) -> Millis | None:
    windows = pipeline.compute
    sessions = isinstance(windows, Windows) and type(windows.assigner) is EventTimeSessionWindows
    return windows.assigner.gap_of_every_element if sessions and isinstance(windows, Windows) else None


def _with_gap(pipeline: Pipeline, value: Millis) -> Pipeline:
    assert isinstance(pipeline.compute, Windows)
    sessions = EventTimeSessionWindows.with_gap(value)
    return replace(pipeline, compute=replace(pipeline.compute, assigner=sessions))


SETTINGS: dict[str, _Setting] = {
    "allowed_lateness": _Setting(_lateness, _with_lateness, "windows in event time"),
    "out_of_orderness": _Setting(
        lambda pipeline: pipeline.watermark.out_of_orderness,
        lambda pipeline, value: replace(pipeline, watermark=pipeline.watermark.with_out_of_orderness(value)),
        "a watermark with a bound on out-of-orderness",
    ),
    "idleness": _Setting(
        lambda pipeline: pipeline.watermark.idle_timeout,
        lambda pipeline, value: replace(pipeline, watermark=pipeline.watermark.with_idleness(value)),
        "a watermark",
        may_be_added=True,
    ),
    "gap": _Setting(_gap, _with_gap, "EventTimeSessionWindows with a fixed gap"),
    "max_ahead": _Setting(
        lambda pipeline: pipeline.max_ahead_millis,
        lambda pipeline, value: replace(pipeline, max_ahead=value),
        "a source",
    ),
}
"""The settings that a branch may change. The state of one value continues under another."""


def check_setting(name: str) -> None:
    """Refuse a name that is not a setting of a branch.

    Raises:
        UsageError: it is not one; the message names the settings.
    """
    if name not in SETTINGS:
        raise UsageError(f"--set {name}: a branch can't change that. It can change {', '.join(SETTINGS)}")


def with_settings(pipeline: Pipeline, settings: Mapping[str, Millis]) -> Pipeline:
    """Return a pipeline with other settings.

    Raises:
        UsageError: the pipeline has no such setting. IllegalArgument: a value is not valid.
    """
    for name, value in settings.items():
        check_setting(name)
        setting = SETTINGS[name]
        if setting.of(pipeline) is None and not setting.may_be_added:
            raise UsageError(f"--set {name}: pipeline {pipeline.name!r} does not have {setting.needs}")
        pipeline = setting.changed(pipeline, value)
    return pipeline


def differing(pipeline: Pipeline, settings: Mapping[str, Millis]) -> dict[str, Millis | None]:
    """Return the settings that have another value in a pipeline, with that value."""
    present = {name: SETTINGS[name].of(pipeline) for name in settings}
    return {name: value for name, value in present.items() if value != settings[name]}
