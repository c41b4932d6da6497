"""Random lives over a source as users have it: odd keys and values, changing rows and code, commands in any order.
After each life, every window is recomputed from the source by the plain rules of `verify`, the checks of `quality`
hold, and a command that refuses something raises an error of ours.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from shutil import rmtree
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.lake import Lake, at, hourly_pipeline
from tidegate import EpochLimits, Project
from tidegate.pipelines import DeltaSource
from tidegate.pipelines.epoch import shard_state
from tidegate.pipelines.errors import Refused, TidegateError
from tidegate.windowing import (
    CalendarEventTimeWindows,
    Count,
    CumulateEventTimeWindows,
    EventTimeSessionWindows,
    Max,
    Min,
    SlidingEventTimeWindows,
    Sum,
    TopN,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    Windows,
)

SEED = int(os.environ.get("TIDEGATE_TEST_SEED", "0"))
MINUTE = timedelta(minutes=1)
KEYS = [
    "ann",
    "Ann",
    "änn",
    "a\u0308nn",
    "",
    "  ",
    "null",
    "日本",
    "a/b",
    "a=b&c",
    "x" * 300,
    "o'neil",
    'q"uote',
    "a\nb",
]
KEYS_OF: list[tuple[pa.DataType, list[Any]]] = [
    (pa.string(), KEYS),
    (
        pa.string(),
        ["", "a", "a\0", "\0", r"\N", r"\x00", "null", "\ufeff", "\U0001f3f3\ufe0f\u200d\U0001f308", "\u2028"],
    ),
    (pa.binary(), [b"", b"a", b"a\0", b"\0", b"\xff\xfe", rb"\x", rb"\N"]),
    (pa.decimal128(38, 9), [Decimal(0), Decimal("-1E-9"), Decimal(f"{'9' * 29}.{'9' * 9}"), Decimal("1.10")]),
    (pa.date32(), [date.min, date.max, date(1969, 12, 31), date(1582, 10, 10)]),
    (pa.timestamp("us", "UTC"), [at("10:00"), datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)]),
    (pa.timestamp("us"), [datetime.min, datetime.max, datetime(2024, 3, 31, 2, 30)]),
    (pa.bool_(), [True, False]),
]
FLOATS = [0.0, -0.0, 1.5, float("nan"), float("inf"), 1e300, None]
ASSIGNERS = [
    TumblingEventTimeWindows.of(60 * MINUTE),
    TumblingEventTimeWindows.of(60 * MINUTE, 7 * MINUTE),
    SlidingEventTimeWindows.of(60 * MINUTE, 15 * MINUTE),
    SlidingEventTimeWindows.of(50 * MINUTE, 20 * MINUTE, 7 * MINUTE),
    CumulateEventTimeWindows.of(120 * MINUTE, 30 * MINUTE),
    EventTimeSessionWindows.with_gap(20 * MINUTE),
    EventTimeSessionWindows.with_dynamic_gap(lambda row: 600_000 if row["state"] == "a" else 1_800_000),
    CalendarEventTimeWindows.days("America/New_York"),
]
WHERE = [None, None, "amount > 0 OR amount IS NULL", "part <> 1"]
CHANGING = [
    *["aggregates", "lateness", "bound", "parallelism", "where", "by", "idle", "assigner"],
    *["null_keys", "not_before"],
]
"""What the code of a drawn life may change."""
COLUMNS = pa.schema(
    [
        ("user", pa.string()),
        ("part", pa.int32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("amount", pa.decimal128(12, 2)),
        ("ratio", pa.float64()),
        ("state", pa.string()),
    ]
)


class Life:
    """A life of a pipeline; what each command does is drawn from a seed."""

    name: str
    project: Project

    def __init__(self, lake: Lake, seed: int) -> None:
        self.lake, self.draw, self.now, self.number = lake, random.Random(seed), at("12:00"), 0

    def deeds(self) -> list[Callable[[], object]]:
        """What may happen next."""
        raise NotImplementedError

    def live(self, deeds: int) -> None:
        """Take this many actions, and stream the rest; a refused action changes nothing."""
        for _ in range(deeds):
            self.now += self.draw.choice([0, 10, 30]) * MINUTE
            with suppress(TidegateError):
                self.draw.choice(self.deeds())()
        self.catch_up()

    def catch_up(self) -> None:
        """Read what is left of the source."""
        self.project.stream(self.name)

    def savepoint(self) -> None:
        self.number += 1
        self.project.savepoints.create(self.name, f"s{self.number}")

    def restore(self) -> None:
        self.project.restore(self.name, f"savepoint:s{self.draw.randint(1, max(1, self.number))}")

    def lose_and_restore(self) -> None:
        place, name = str(self.lake.folder / "elsewhere"), f"lost{self.number}"
        self.number += 1
        self.project.savepoints.create(self.name, name, tables=True, to=place)
        (self.lake.folder / "warehouse" / self.name).rename(self.lake.folder / f"lost {self.number}")
        self.project.restore(self.name, f"savepoint:{name}", tables=True, at=place)


class Drawn(Life):
    """A life over rows and code that change."""

    name = "hours"

    def __init__(self, lake: Lake, seed: int) -> None:
        super().__init__(lake, seed)
        self.key = self.draw.choice([("user",), ("user", "part"), ("part",)])
        self.kind, self.users = self.draw.choice(KEYS_OF)
        self.fixed: dict[str, Any] = {
            "key": self.key,
            "source": DeltaSource("events", timestamp="at", changes=self.draw.choice(["correct", "correct", "ignore"])),
        }
        self.null_keys, self.not_before = self.draw.choice(["reject", "keep"]), None
        self.where, self.by, self.idle = self.draw.choice(WHERE), self.draw.choice([None, "part", "state"]), None
        self.settings = {"windows": {"partition_by": self.draw.choice(["day", "none"]), "early": bool(seed % 2)}}
        self.assigner = self.draw.choice(ASSIGNERS)
        self.aggregates = {"n": Count(), "sum": Sum("amount"), "low": Min("ratio"), "high": Max("ratio")}
        self.aggregates["best"] = TopN(2, by="amount", ties=["at"], also=["state", "ratio"])
        self.lateness, self.bound, self.parallelism = self.draw.choice([0, 10, 60]), 30, self.draw.choice([1, 2, 5])
        self.left: list[Any] = []
        self.code()
        self.append()

    def code(self) -> None:
        """Create the project from the current code."""
        windows = Windows(self.assigner, aggregate=self.aggregates, allowed_lateness=self.lateness * MINUTE)
        watermark = WatermarkStrategy.for_bounded_out_of_orderness(self.bound * MINUTE)
        self.pipeline = hourly_pipeline(
            compute=windows,
            watermark=watermark if self.idle is None else watermark.with_idleness(self.idle * MINUTE),
            watermark_by=self.by,
            where=self.where,
            parallelism=self.parallelism,
            null_keys=self.null_keys,
            **self.fixed | {"source": replace(self.fixed["source"], not_before=self.not_before)},
        )
        self.project = self.lake.project(self.pipeline, settings={"hours": self.settings})

    def changed(self, change: Callable[[], None], run: Callable[[], object]) -> None:
        """Change the code and run a command; if it is refused, the code is changed back."""
        before = {name: getattr(self, name) for name in CHANGING}
        change()
        self.code()
        try:
            run()
        except TidegateError:
            for name, value in before.items():
                setattr(self, name, value)
            self.code()
            raise

    def catch_up(self) -> None:
        """Read what is left. If the changed rows are in windows of another assigner, do what the refusal says: undo the
        change of the code, and if windows of both are affected, skip the version.
        """
        try:
            super().catch_up()
        except Refused as refused:
            if "Undo the code change" not in str(refused) or self.fixed["source"].changes == "ignore":
                raise
            if self.left:
                self.assigner = self.left.pop()
            else:
                self.fixed["source"] = DeltaSource("events", timestamp="at", changes="ignore")
            self.code()
            self.catch_up()

    def redefine(self) -> None:
        before = self.assigner

        def change() -> None:
            name = self.draw.choice(CHANGING)
            added = {**self.aggregates, f"more {len(self.aggregates)}": self.draw.choice([Count(), Sum("ratio")])}
            drawn: dict[str, list[Any]] = {"lateness": [0, 10, 60, 200], "bound": [0, 30, 90], "parallelism": [1, 2, 7]}
            drawn |= {"assigner": ASSIGNERS, "where": WHERE, "by": [None, "part", "state"], "idle": [None, 20]}
            drawn |= {"null_keys": ["reject", "keep"], "not_before": [None, at("09:00").replace(tzinfo=None)]}
            setattr(self, name, added if name == "aggregates" else self.draw.choice(drawn[name]))

        self.changed(change, lambda: self.draw.choice([self.project.stream, self.project.late.reopen])("hours"))
        if self.assigner != before:
            self.left.append(before)

    def begin_another(self) -> None:
        """Begin a pipeline of another name from a snapshot of this one, stream it, and verify it."""
        self.number += 1
        epochs = [str(each["epoch"]) for each in self.project.snapshots.list("hours").snapshots]
        name, target = f"other{self.number}", self.draw.choice(["latest", *epochs])
        other = self.lake.project(replace(self.pipeline, name=name), settings={name: self.settings})
        other.restore(name, target, from_="hours")
        with suppress(TidegateError):
            other.stream(name)
        assert other.verify(name, sample="all", new=True).faults == ()
        rmtree(self.lake.folder / "warehouse" / name)

    def reopen_some(self) -> None:
        start = at("08:00") + self.draw.randint(0, 12) * 30 * MINUTE
        self.project.late.reopen("hours", start=start, end=start + self.draw.choice([30, 240]) * MINUTE)

    def ask(self) -> None:
        """Questions about a key are answered or refused, and what has been published verifies."""
        assert self.project.verify("hours", sample="all", new=True).faults == ()
        key = tuple(self.draw.choice(self.users if name == "user" else [1, 2]) for name in self.key)
        assert str(self.project.why("hours", key=key))
        assert str(self.project.trace("hours", key))

    def overwrite(self) -> None:
        """Overwrite the source without some of its rows, with others twice."""
        rows = self.source.to_pyarrow_table()
        kept = rows.filter(pc.fill_null(pc.not_equal(rows["state"], "b"), True))
        write_deltalake(self.lake.path("events"), pa.concat_tables([kept, rows.slice(0, 5)]), mode="overwrite")

    def backfill(self) -> None:
        start = at("06:00") + self.draw.randint(0, 6) * 60 * MINUTE
        and_following, again = (self.draw.choice([True, False]) for _ in range(2))
        self.project.backfill("hours", start=start, end=start + 180 * MINUTE, and_following=and_following, again=again)

    @property
    def source(self) -> DeltaTable:
        return DeltaTable(self.lake.path("events"))

    def append(self) -> None:
        def value(some: list[Any], least: float) -> Any:
            return None if self.draw.random() < least else self.draw.choice(some)

        times = [self.now + self.draw.randint(-180, 60) * MINUTE for _ in range(self.draw.choice([1, 20, 60]))]
        rows = [
            (
                value(self.users, 0.03),
                value([1, 2, -5], 0.1),
                value([time], 0.02),
                value([Decimal(7)], 0.1),
                value(FLOATS, 0),
            )
            for time in times
        ]
        columns = [*map(list, zip(*rows, strict=True)), [value(["a", "b"], 0.2) for _ in rows]]
        self.lake.write(pa.table(columns, schema=COLUMNS.set(0, pa.field("user", self.kind))))

    def forget(self) -> None:
        key = tuple(self.draw.choice(self.users if name == "user" else [1, 2]) for name in self.key)
        self.project.forget("hours", key)
        left = self.project.results("hours", view="all").to_dict()
        assert key not in {tuple(row[name] for name in self.key) for row in left}

    def deeds(self) -> list[Callable[[], object]]:
        project = self.project
        return [
            *[self.append, lambda: project.stream("hours")] * 4,
            lambda: self.source.delete("part = 2 AND state = 'a'"),
            lambda: self.source.update(predicate="state = 'b'", updates={"amount": "amount + 1"}),
            lambda: self.source.update(
                predicate="state = 'a' AND part = 1", updates={"at": "at + interval '25 minutes'"}
            ),
            lambda: self.source.optimize.compact(),
            lambda: project.tables.vacuum("hours", snapshots=self.draw.choice([1, 3]), days=0),
            lambda: project.tables.optimize("hours"),
            self.savepoint,
            self.restore,
            self.forget,
            lambda: project.late.reopen("hours"),
            lambda: project.late.prune("hours", days=1),
            lambda: project.tables.rebuild_windows("hours"),
            *[self.redefine] * 2,
            self.begin_another,
            self.reopen_some,
            self.ask,
            self.overwrite,
            lambda: (version := self.source.version()) and self.source.restore(self.draw.randrange(version)),
            lambda: project.restore("hours", self.draw.randint(1, 9), keep_stale=self.draw.choice([True, False])),
            lambda: project.replay("hours", commits_per_epoch=2),
            lambda: project.stream("hours", limits=EpochLimits(commits=1)),
            self.backfill,
            self.lose_and_restore,
        ]


@pytest.mark.parametrize(
    ("seed", "deeds"),
    [(SEED, 10), *(pytest.param(seed, 40, marks=pytest.mark.long) for seed in range(SEED, SEED + 30))],
)
def test_a_drawn_life_verifies(lake: Lake, seed: int, deeds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # The shards of a life have few rows, so an epoch with fewer keys than that may write a delta.
    monkeypatch.setattr(shard_state, "SMALLEST", 1)
    monkeypatch.setattr(shard_state, "SHARE", 1)
    life = Drawn(lake, seed)
    life.live(deeds)
    assert life.project.verify("hours", sample="all").faults == ()
    life.project.quality.check("hours").require()
