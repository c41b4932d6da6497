"""Keys that a hash or pandas can't tell apart lead the lives of plain keys, through every command. No JVM runs. Twins
have the same hash because nulls don't change it, or because somebody chose the text so; others differ only after a NUL,
or consist of the same characters. The life of plain keys in their place defines what each of them must have, and for
hours plain Python does so too.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.expectations.broken import broken_by_rules
from tests.lake import DAY0, LOCAL, Clock, Lake
from tests.twins import twin_of
from tidegate.expectations.pinned import pin
from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.pipelines.ask.waiting import open_windows
from tidegate.pipelines.correct.correct import reopen
from tidegate.pipelines.correct.request import Selection
from tidegate.pipelines.ledger.snapshots.forget import forget
from tidegate.pipelines.ledger.snapshots.head import state_rows
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.ledger.snapshots.retention import prune
from tidegate.pipelines.ledger.snapshots.savepoint import create_savepoint, find_snapshot, read_savepoint
from tidegate.pipelines.ledger.tables.keys import digests
from tidegate.pipelines.project.cli import run as tidegate
from tidegate.windowing import (
    Count,
    EventTimeSessionWindows,
    Sum,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    Windows,
    keys,
)
from tidegate.windowing.columnar import hashing
from tidegate.windowing.keys import KeySchema

Key: TypeAlias = tuple[str | None, str | None]
Row: TypeAlias = tuple[int, int, int]
"""Number of a key, minute and value."""
Step: TypeAlias = tuple[Any, ...]

TEXT = "alice.customer.1"
TWINS: list[list[Key]] = [
    [("x", None), (None, "x"), ("x", "null"), (r"\N", "x")],
    [(TEXT, None), (None, twin_of(TEXT)), (twin_of(TEXT), None), (None, TEXT)],
    [(TEXT, "b"), (twin_of(TEXT), "b"), (TEXT, None), (twin_of(TEXT), None)],
    [("a\0b", "c"), ("a\0c", "c"), ("a", "c"), ("a\0", "c")],
    [("ab", "c"), ("a", "bc"), ("", "abc"), ("abc", "")],
]
CLOCK = 4
"""Number of the key that only advances the watermark."""

ROWS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 179), st.integers(1, 9)), min_size=1, max_size=6)
STEP = st.one_of(
    st.tuples(st.just("read"), ROWS),
    st.tuples(st.just("read"), ROWS),
    st.tuples(st.just("change"), st.integers(0, 30), st.integers(0, 9)),
    st.tuples(st.just("change"), st.integers(0, 30), st.integers(0, 9)),
    st.tuples(st.just("reopen"), st.none() | st.integers(0, 3), st.none() | st.integers(0, 120)),
    st.tuples(st.just("reopen"), st.none(), st.none()),
    st.tuples(st.just("restore"), st.integers(1, 2)),
    st.tuples(st.just("forget"), st.integers(0, 3)),
    st.tuples(st.just("prune")),
)
HOURS, SESSIONS = "hours", "sessions"


def text_of(part: str | None) -> str:
    """Return a part of a key as users write it on the command line."""
    return r"\N" if part is None else "\\" + part if part.strip("\\") == "N" and part[0] == "\\" else part


@dataclass
class Life:
    """A pipeline over rows of some keys, and the results of its steps by the numbers of the keys."""

    folder: Path
    keys: Sequence[Key]
    shape: str
    rows: list[Row] = field(default_factory=list)
    time: int = 0
    given: list[Any] = field(default_factory=list)
    forgotten: set[int] = field(default_factory=set)
    pruned: bool = False
    checked: bool = True

    def __post_init__(self) -> None:
        self.lake = Lake(self.folder, Clock(1_800_000_000_000))
        hours = TumblingEventTimeWindows.of(timedelta(hours=1))
        sessions = EventTimeSessionWindows.with_gap(timedelta(minutes=10))
        self.pipeline = Pipeline(
            name="twins",
            source=DeltaSource("events", timestamp="at", changes="correct"),
            key=("a", "b"),
            null_keys="keep",
            watermark=WatermarkStrategy.for_monotonous_timestamps(),
            compute=Windows(
                hours if self.shape == HOURS else sessions,
                aggregate={"events": Count(), "total": Sum("value")},
                allowed_lateness=timedelta(minutes=0 if self.shape == HOURS else 15),
            ),
            parallelism=2,
            max_parallelism=8,
        )
        self.tables = self.lake.tables(self.pipeline)

    def live(self, steps: Sequence[Step]) -> None:
        for step in steps:
            getattr(self, step[0])(*step[1:])
            self.given.append((step, self.shown()))
        assert broken_by_rules(pin(self.tables, self.pipeline)) == set()

    def read(self, rows: list[Row]) -> None:
        self.time += 60
        new = [*((key, min(minute, self.time), value) for key, minute, value in rows), (CLOCK, self.time, 1)]
        self.rows += new
        self.lake.write(self._table(new))
        self.lake.stream(LOCAL, self.pipeline)

    def change(self, number: int, value: int) -> None:
        """Give a row a different value, or remove it."""
        place = number % len(self.rows)
        key, minute, _ = self.rows[place]
        if key != CLOCK:
            self.rows[place : place + 1] = [(key, minute, value)] if value else []
            write_deltalake(self.lake.path("events"), self._table(self.rows), mode="overwrite")
            self.lake.stream(LOCAL, self.pipeline)

    def reopen(self, key: int | None, start: int | None) -> None:
        texts = None if key is None else tuple(map(text_of, self.keys[key]))
        begin = None if start is None else int((DAY0 + timedelta(minutes=start)).timestamp()) * 1000
        with self.lake.driver(LOCAL, self.pipeline) as driver:
            manifest, rows = reopen(driver, Selection(texts, begin))
            self.given.append((None if manifest is None else manifest.epoch, rows))

    def restore(self, back: int) -> None:
        newest = self.lake.snapshot(self.pipeline).manifest.epoch
        if newest > back and not self.forgotten:
            restore(self.tables, find_snapshot(self.tables, str(newest - back)), self.lake.clock())
            self.lake.stream(LOCAL, self.pipeline)

    def forget(self, key: int) -> None:
        done = forget(self.tables, self.pipeline, tuple(map(text_of, self.keys[key])), self.lake.clock())
        self.given.append(done.rows)
        self.forgotten.add(key)
        assert key not in {row[0] for rows in self.shown()[:4] for row in rows}

    def prune(self) -> None:
        self.pruned = True
        self.given.append(prune(self.tables, self.lake.clock() + 1, self.lake.clock()))

    def shown(self) -> list[Any]:
        """Return the rows of the tables and the output of commands, with keys replaced by their numbers."""
        of_panes = ["window_start", "window_end", "pane", "op", "timing", "events", "total", "epoch"]
        results = self._numbered(self.lake.rows(self.pipeline, "results"), of_panes)
        latest = self._numbered(self.lake.latest(self.pipeline), of_panes)
        late = self._numbered(self.lake.rows(self.pipeline, "late"), ["at", "value", "epoch", "reopened"])
        state = state_rows(self.tables.warehouse, self.lake.snapshot(self.pipeline))
        state_of = self._numbered(state, ["window_start", "window_end", "pane", "in_flight"])
        head = self.lake.snapshot(self.pipeline)
        of_keys = [
            open_windows(self.tables.warehouse, head, 0, 0, tuple(map(text_of, key)))[1] for key in self.keys[:CLOCK]
        ]
        self._check(latest, late)
        return [results, latest, late, state_of, of_keys]

    def _check(self, latest: list[Any], late: list[Any]) -> None:
        """Compare the results of hours with those of plain Python."""
        if self.shape != HOURS or self.pruned or not self.checked:
            return
        taken = Counter((key, minute, value) for key, minute, value in self.rows if key not in self.forgotten)
        taken -= Counter((key, _minute(at), value) for key, at, value, _, by in late if by is None)
        sums: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
        for (key, minute, value), times in taken.items():
            sums[key, minute // 60][0] += times
            sums[key, minute // 60][1] += times * value
        # The windows that end after the newest row are open.
        expected = {(*window, *both) for window, both in sums.items() if (window[1] + 1) * 60 <= self.time}
        assert {(row[0], _minute(row[1]) // 60, row[6], row[7]) for row in latest} - {
            row for row in expected if row[0] in self.forgotten
        } == expected

    def _numbered(self, rows: pa.Table, names: list[str]) -> list[Any]:
        numbers = {key: number for number, key in enumerate(self.keys)}
        columns = [rows[name].to_pylist() for name in ("a", "b", *names)]
        return sorted(((numbers[a, b], *rest) for a, b, *rest in zip(*columns, strict=True)), key=repr)

    def _table(self, rows: list[Row]) -> pa.Table:
        columns: dict[str, Any] = {
            "a": pa.array([self.keys[key][0] for key, _, _ in rows], pa.string()),
            "b": pa.array([self.keys[key][1] for key, _, _ in rows], pa.string()),
            "at": pa.array([DAY0 + timedelta(minutes=minute) for _, minute, _ in rows], pa.timestamp("us", tz="UTC")),
            "value": pa.array([value for _, _, value in rows], pa.int64()),
        }
        return pa.table(columns)


def _minute(moment: Any) -> int:
    return int((moment - DAY0).total_seconds()) // 60


PLAIN: list[Key] = [("p", "k"), ("q", "k"), ("r", "k"), ("s", "k")]
CLOCK_KEY: Key = ("clock", "clock")
EVERYTHING: list[Step] = [
    ("read", [(0, 5, 1), (1, 6, 2), (2, 7, 3), (3, 8, 4)]),
    ("read", [(0, 65, 1), (1, 66, 2), (0, 12, 5), (1, 13, 6), (3, 12, 4)]),
    ("read", [(0, 20, 7), (1, 31, 8), (2, 33, 1)]),
    ("reopen", 0, None),
    ("change", 0, 9),
    ("change", 1, 0),
    ("reopen", None, 0),
    ("restore", 1),
    ("read", [(1, 6, 2), (0, 5, 1), (3, 171, 2), (2, 172, 2)]),
    ("change", 5, 0),
    ("forget", 1),
    ("read", [(1, 231, 2), (0, 232, 1)]),
    ("prune",),
    ("forget", 2),
]


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("twins", "shape", "steps"),
    [
        (TWINS[0], HOURS, EVERYTHING[:5]),
        (TWINS[0], HOURS, EVERYTHING),
        (TWINS[2], SESSIONS, EVERYTHING),
        (TWINS[3], SESSIONS, EVERYTHING[:8]),
    ],
)
def test_keys_that_look_alike_live_as_others_do(twins: list[Key], shape: str, steps: list[Step]) -> None:
    check_lives(twins, shape, steps)


@pytest.mark.long
@settings(max_examples=5)
@given(st.sampled_from(TWINS), st.sampled_from([HOURS, SESSIONS]), st.lists(STEP, min_size=3, max_size=6))
def test_keys_that_look_alike_live_drawn_lives_as_others_do(twins: list[Key], shape: str, steps: list[Step]) -> None:
    check_lives(twins, shape, steps)


def check_lives(twins: list[Key], shape: str, steps: list[Step]) -> None:
    """Check that two similar keys get the same results as two plain keys."""
    lives = []
    for of_life in (twins, PLAIN):
        with tempfile.TemporaryDirectory() as folder:
            life = Life(Path(folder), [*of_life, CLOCK_KEY], shape)
            life.live([("read", [(0, 1, 1), (1, 2, 2)]), *steps])
            lives.append(life.given)
    for of_twins, of_plain in zip(*lives, strict=True):
        assert of_twins == of_plain


@pytest.mark.long
@pytest.mark.parametrize("shape", [HOURS, SESSIONS])
def test_a_forgotten_key_leaves_no_digest_in_a_savepoint(tmp_path: Path, shape: str) -> None:
    life = Life(tmp_path, [*TWINS[0], CLOCK_KEY], shape)
    life.live([*EVERYTHING[:3], ("reopen", 0, None)])
    create_savepoint(life.tables, life.lake.snapshot(life.pipeline), "reopened", 1)
    (digest,) = digests(life._table([(0, 0, 0)]), ("a", "b")).to_pylist()
    assert digest in read_savepoint(life.tables, "reopened").manifest.model_dump_json()
    life.forget(0)
    assert digest not in read_savepoint(life.tables, "reopened").manifest.model_dump_json()


def test_commands_name_a_key_with_a_null(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    life = Life(tmp_path, [*TWINS[0], CLOCK_KEY], HOURS)
    life.live([("read", [(0, 5, 1), (1, 6, 2), (2, 7, 3), (0, 30, 1)]), ("read", [(0, 61, 1), (1, 119, 2), (0, 8, 4)])])
    module = ModuleType("module_of_twins")
    module.pipeline = life.pipeline  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    config = tmp_path / "tidegate.toml"
    entry = f'[pipelines.twins]\nobject = "{module.__name__}:pipeline"\nstart = "2024-03-01"\n'
    config.write_text(f'warehouse = "warehouse"\n{entry}')

    def said(*arguments: str) -> Any:
        code = tidegate([*arguments, "--json", "--config", str(config)])
        return code, json.loads(capsys.readouterr().out or "null")

    code, why = said("why", "twins", "--key", "x", "--key", r"\N")
    assert (code, why["late_rows"], why["last_fired"] is not None) == (0, 1, True)
    code, other = said("why", "twins", "--key", "x", "--key", "null")
    assert (code, other["late_rows"]) == (0, 0)
    code, latest = said("results", "twins", "--view", "latest", "--limit", "0")
    assert (code, {(row["a"], row["b"]) for row in latest} >= {("x", None), (None, "x"), ("x", "null")}) == (0, True)
    assert tidegate(["results", "twins", "--view", "latest", "--limit", "0", "--config", str(config)]) == 0
    cells = {tuple(line.split()[:2]) for line in capsys.readouterr().out.splitlines()}
    assert cells >= {("x", r"\N"), (r"\N", "x"), ("x", "null")}, "people can copy a key into a command"
    assert said("forget", "twins", "x", "None", "--yes")[1]["epoch"] is None
    code, forgotten = said("forget", "twins", "x", r"\N", "--yes")
    erased = {row["table"]: row["rows"] for row in forgotten["rows"]}
    assert (code, erased["results"] > 0, erased["late"]) == (0, True, 1)
    kept = {(row["a"], row["b"]) for row in life.lake.rows(life.pipeline, "results").to_pylist()}
    assert kept >= {(None, "x"), ("x", "null")}
    assert ("x", None) not in kept


@pytest.mark.long
@pytest.mark.parametrize("shape", [HOURS, SESSIONS])
def test_windows_of_a_key_with_one_id_harm_no_other_key_and_no_check(
    tmp_path: Path, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All windows of one key have the same id, which nobody could produce."""
    steps = [("read", [(0, 1, 1), (1, 2, 2)]), *EVERYTHING[:7], *EVERYTHING[8:10]]
    plain = Life(tmp_path / "plain", [*PLAIN, CLOCK_KEY], shape)
    plain.live(steps)
    hashed = KeySchema.of(a=pa.string(), b=pa.string()).hash_of(PLAIN[0])
    of_one, of_many = keys._hash_long, hashing._hash_longs
    monkeypatch.setattr(keys, "_hash_long", lambda value, seed: hashed if seed == hashed else of_one(value, seed))
    monkeypatch.setattr(
        hashing,
        "_hash_longs",
        lambda values, seeds: np.where(seeds == np.uint64(hashed), seeds, of_many(values, seeds)),
    )
    life = Life(tmp_path / "shared", [*PLAIN, CLOCK_KEY], shape, checked=False)
    life.live(steps)
    of_key = [row for row in life.lake.rows(life.pipeline, "results").to_pylist() if row["a"] == "p"]
    assert len({row["window_start"] for row in of_key}) > len({row["window_id"] for row in of_key}) == 1
    for (step, rows), (_, others) in zip(without_key_0(plain.given), without_key_0(life.given), strict=True):
        assert rows == others, step


def without_key_0(given: list[Any]) -> list[Any]:
    """Return the results of steps, without the rows of the first key."""
    shown = [entry for entry in given if isinstance(entry[0], tuple)]
    return [(step, [[row for row in rows if row[0]] for rows in tables[:4]]) for step, tables in shown]
