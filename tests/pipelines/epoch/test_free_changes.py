"""Changes of the fields that may change freely, with open windows and late rows, held against what they mean."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from tests.conditions import CONDITIONS, is_kept
from tests.lake import LOCAL, Row
from tests.pipelines.epoch.test_drawn import ASSIGNERS, DAY, END, MINUTE, USERS, Drawn, found_by_a_draw
from tidegate.pipelines.engine.base import Engine
from tidegate.pipelines.epoch.open_input import OpenInput
from tidegate.pipelines.epoch.recompute_rows import SourceRows
from tidegate.pipelines.run import corrections
from tidegate.windowing import WatermarkStrategy, Windows
from tidegate.windowing.time import to_millis

pytestmark = pytest.mark.slow

WHERE = (None, *CONDITIONS)
FIXED = ("tumbling", "calendar")
"""Windows whose bounds no element moves, and of which each element has one."""


def free_change(draw: random.Random) -> dict[str, Any]:
    """Some of the fields that move no window, each with another value."""
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(draw.choice([0, 10, 60]) * MINUTE)
    idle = draw.choice([None, 15, 40])
    fields = {
        "watermark": strategy if idle is None else strategy.with_idleness(idle * MINUTE),
        "watermark_by": draw.choice(["user", None]),
        "allowed_lateness": draw.choice([0, 15, 60]) * MINUTE,
        "parallelism": draw.choice([1, 2, 4]),
        "checkpoint_interval": draw.choice([1, 9]) * MINUTE,
    }
    return {name: fields[name] for name in draw.sample(list(fields), draw.choice([1, 2, 3]))}


def the_law_holds(folder: Path, kind: str, seed: int) -> bool:
    """Whatever moves no window may change: everything reopened gives the windows of a backfill from scratch."""
    drawn = Drawn.of(folder, kind, seed)
    for _ in range(3):
        drawn.arrive(3)
        drawn.stream()
        if drawn.draw.random() < 0.3:
            drawn.lake.reopen(LOCAL, drawn.pipeline)
        drawn.change(**free_change(drawn.draw))
    drawn.end()
    drawn.lake.reopen(LOCAL, drawn.pipeline)
    return drawn.final() == drawn.from_scratch() and drawn.late() == 0


Window = tuple[str, int, int]
"""Key and bounds, int64 epoch milliseconds."""


@dataclass
class Told(Drawn):
    """A stream whose rows are told apart by their values, and the windows that its changes of `where` mean.

    Args:
        windows: of each row, by its value.
        seen: the values of the rows that were read.
        contents: the values in each window.
    """

    windows: dict[int, Window] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    contents: dict[Window, set[int]] = field(default_factory=dict)
    number: int = 0

    def gap(self) -> int:
        """A value that no other row has."""
        self.number += 1
        return self.number

    def append(self, rows: list[Row]) -> None:
        """Note the window of each row."""
        assigner = cast("Windows", self.pipeline.compute).assigner
        for user, time, value in rows:
            (window,) = assigner.assign_windows({}, to_millis(time), None)  # type: ignore[arg-type]
            self.windows[value] = (user, window.start, window.end)
        super().append(rows)

    def stream(self) -> None:
        """Rows that were read, those of them that today's `where` keeps, and those of these in table late."""
        super().stream()
        late = set(self.lake.rows(self.pipeline, "late")["value"].to_pylist())
        for value in self.windows.keys() - self.seen - late:
            if self.keeps(value):
                self.contents.setdefault(self.windows[value], set()).add(value)
        self.seen |= self.windows.keys()

    def end(self) -> None:
        """Events long after all others, which every condition keeps."""
        self.lake.clock.now = to_millis(END + 2 * DAY)
        self.append([(user, END + 2 * DAY, 1_000_000 + 6 * number) for number, user in enumerate(USERS)])
        self.stream()

    def keeps(self, value: int) -> bool:
        """True if today's `where` keeps a row."""
        return is_kept(self.pipeline.where, {"value": value})

    def reopened(self) -> None:
        """Windows of late rows that waited hold all that was read of them and `where` of today keeps."""
        rows = self.lake.rows(self.pipeline, "late").to_pylist()
        waited = {self.windows[row["value"]] for row in rows if row["reopened"] is None}
        self.lake.reopen(LOCAL, self.pipeline)
        for waiting in waited:
            held = {value for value, window in self.windows.items() if window == waiting and self.keeps(value)}
            self.contents[waiting] = held

    def expected(self) -> set[tuple[Any, ...]]:
        """Key, bounds, number and sum of each window that holds anything; those of the end are open."""
        last = max(end for _, _, end in self.windows.values())
        return {(*window, len(held), sum(held)) for window, held in self.contents.items() if held and window[2] < last}


def where_is_held(folder: Path, kind: str, seed: int) -> bool:
    """Rows are kept by the `where` of the run that reads them, and of a window that is reopened by that of today."""
    told = Told.of(folder, kind, seed)
    told.change(where=told.draw.choice(WHERE))
    for _ in range(3):
        told.arrive(3)
        told.stream()
        if told.draw.random() < 0.5:
            told.reopened()
        told.change(where=told.draw.choice(WHERE))
    told.end()
    told.reopened()
    found = {
        (row["user"], to_millis(row["window_start"]), to_millis(row["window_end"]), row["events"], row["total"])
        for row in told.lake.latest(told.pipeline).to_pylist()
    }
    return found == told.expected()


@pytest.mark.first(2)
@pytest.mark.parametrize("seed", range(1))
@pytest.mark.parametrize("kind", ASSIGNERS)
def test_fields_that_move_no_window_may_change(tmp_path: Path, kind: str, seed: int) -> None:
    assert the_law_holds(tmp_path, kind, seed)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", FIXED)
def test_a_changed_where_holds_for_what_is_read_and_reopened_from_then_on(tmp_path: Path, kind: str, seed: int) -> None:
    assert where_is_held(tmp_path, kind, seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 25))
@pytest.mark.parametrize("kind", ASSIGNERS)
def test_both_hold_on_many_streams(tmp_path: Path, kind: str, seed: int) -> None:
    assert the_law_holds(tmp_path / "law", kind, seed)
    if kind in FIXED:
        assert where_is_held(tmp_path / "where", kind, seed)


def test_the_draws_find_a_reopening_that_ignores_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def everything(engine: Engine, source: OpenInput, *given: Any) -> SourceRows:
        pipeline = replace(source.bound.pipeline, where=None)
        return SourceRows(engine, OpenInput.open(engine, given[1], pipeline), *given)

    monkeypatch.setattr(corrections, "SourceRows", everything)
    assert found_by_a_draw(tmp_path, where_is_held, "tumbling", 8)
