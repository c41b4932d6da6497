"""The settings that a branch may change, and the pipeline that it runs: the code's pipeline with these settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tidegate.pipelines.definition.branches import no_branch, read_note
from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.definition.config.opened import warehouse_of
from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.errors import UsageError
from tidegate.windowing.assigners import EventTimeSessionWindows
from tidegate.windowing.compute import Windows
from tidegate.windowing.time import Millis


def branch_pipeline(config: Config, name: str, pipeline: Pipeline) -> Pipeline:
    """Return the pipeline of a branch: the code's pipeline with the branch's name and settings.

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
    """A time setting that a branch may change.

    Args:
        of: returns its value in a pipeline, milliseconds; None if the pipeline has no such setting.
        changed: returns the pipeline with another value.
        needs: a phrase for what a pipeline needs to have it.
        may_be_added: True if it can be set where the pipeline has None.
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
"""The settings that a branch may change: state computed with one value stays valid under another."""


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
        UsageError: the pipeline has no such setting.
        IllegalArgument: a value is not valid.
    """
    for name, value in settings.items():
        check_setting(name)
        setting = SETTINGS[name]
        if setting.of(pipeline) is None and not setting.may_be_added:
            raise UsageError(f"--set {name}: pipeline {pipeline.name!r} does not have {setting.needs}")
        pipeline = setting.changed(pipeline, value)
    return pipeline


def differing(pipeline: Pipeline, settings: Mapping[str, Millis]) -> dict[str, Millis | None]:
    """Return the settings whose values in a pipeline differ, with those values."""
    present = {name: SETTINGS[name].of(pipeline) for name in settings}
    return {name: value for name, value in present.items() if value != settings[name]}
