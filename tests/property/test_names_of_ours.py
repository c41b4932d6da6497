"""No name of ours shows: whatever columns, keys and results are called, the tables, and all that is said of them, are
those of a pipeline with plain names. A name may be refused before anything is written."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.property.named_lives import KINDS, SHAPES, Made, Names, short_life, whole_life
from tidegate.pipelines.definition import epochs, late, results
from tidegate.windowing.errors import IllegalArgument

OF_TABLES = [field.name for part in (results.LEADING, results.ELEMENT_LEADING, late.TRAILING) for field in part]
OF_STATE = ["key_group", "namespace", "side", "state_window_start", "in_flight", "event_time_timers", "filled"]
OF_STATE += ["missing", "late_firing", "emitted", "trigger_state", "user_state", "unseen_elements", "manifest"]
OF_STATE += ["held", "held_value", "acc", "acc_n", "rest_acc_n", "elements", "reduced"]
OF_PLANS = ["key_user", "value_gap", "__start", "__end", "__number", "__slot", "__until", "commit", "timestamp", "row"]
OF_PLANS += [
    "__time",
    "__status",
    "__commit",
    "__row",
    "__file",
    "__place",
    "__kept",
    "__partition",
    "__path",
    "__side",
]
OF_QUERIES = [
    "tidegate_newest",
    "tidegate_watermark",
    "tidegate.window_id",
    "tidegate_watermarks",
    "panes",
    "times",
    "results",
    "all",
]
OF_COMMANDS = ["rows", "open", "windows", "median", "largest", "first epoch", "last epoch", "_merge", "index", "value"]
OF_INPUTS = ["input_reason", "input_epoch", "input_reopened", "_change_type", "_commit_version", "_metadata", "a.b"]
POOL = sorted({*OF_TABLES, *epochs.SCHEMA.names, *OF_STATE, *OF_PLANS, *OF_QUERIES, *OF_COMMANDS, *OF_INPUTS})

SPELLED = st.sampled_from([str, str, str, str.upper, str.title])
NAME = st.builds(lambda name, spelled: spelled(name), st.sampled_from(POOL), SPELLED)
DRAWN = st.lists(NAME, min_size=8, max_size=8, unique_by=str.casefold).map(lambda names: Names(*names))

TELLING = {
    "hours": Names("emitted", "stale", "reason", "window_end", "emitted_at", "pane_", "tidegate_newest", "reopened"),
    "sessions": Names("value_gap", "timing", "final_at", "gap", "lateness_ms", "event_time", "output", "key_group"),
    "sliding": Names("__slot", "pane", "op", "epoch", "reopened", "rows", "held", "all"),
    "function": Names("op", "epoch", "reopened", "window_start", "watermark", "pane", "window_end", "key_group"),
}
"""Names that were taken for ours, by the shape of the pipeline."""


def made(life: Callable[[Path, Names, str, str], Made], names: Names, kind: str, shape: str) -> Made:
    """Return what a life leaves. A role whose name is refused gets its plain name."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return life(Path(folder), names, kind, shape)
        except IllegalArgument as refused:
            assert not Path(folder, "warehouse", "named", "state").exists(), "nothing was written"
            others = without_refused(names, refused)
    return made(life, others, kind, shape)


def without_refused(names: Names, refused: IllegalArgument) -> Names:
    """Return the names, of which the refused one is plain."""
    roles = ["key"] if refused.field == "key" else ["count", "total", "one"]
    (role,) = [role for role in roles if f"= {getattr(names, role)!r}:" in str(refused)]
    assert getattr(names, role) != getattr(Names(), role), refused
    return replace(names, **{role: getattr(Names(), role)})


@cache
def plain(life: Callable[[Path, Names, str, str], Made], kind: str, shape: str) -> Made:
    return made(life, Names(), kind, shape)


def agree(life: Callable[[Path, Names, str, str], Made], names: Names, kind: str, shape: str) -> None:
    for expected, actual in zip(plain(life, kind, shape), made(life, names, kind, shape), strict=True):
        assert actual == expected


@pytest.mark.first(1)
@pytest.mark.parametrize("shape", ["hours", "function"])
def test_names_that_were_taken_for_ours_are_not(shape: str) -> None:
    agree(short_life, TELLING[shape], "boolean" if shape == "hours" else "string", shape)


@pytest.mark.long
@pytest.mark.parametrize("shape", SHAPES)
def test_names_that_were_taken_for_ours_are_not_in_a_whole_life(shape: str) -> None:
    agree(whole_life, TELLING[shape], "string", shape)


@pytest.mark.long
@pytest.mark.timeout(3600)
@settings(max_examples=12, phases=[Phase.generate])
@given(DRAWN, st.sampled_from(sorted(KINDS)), st.sampled_from(SHAPES))
def test_no_name_of_ours_shows(names: Names, kind: str, shape: str) -> None:
    agree(whole_life, names, kind, shape)
