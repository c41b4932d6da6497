"""Three pipelines in a chain: sessions, then the sessions of three hours, then the users of a day by their sessions.

Each reads table `windows` of the one before. Its life is drawn, and its windows are compared with pandas.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake

from tests.lake import DAY0
from tidegate import Project

NAMES = ("visits", "shifts", "days")

TOML = """
warehouse = "warehouse"
work = "work"
engine = "local"
""" + "".join(f'\n[pipelines.{name}]\nobject = "chained:{name}"\nstart = 2024-03-01\n' for name in NAMES)

CODE = """
from datetime import timedelta

from tidegate import Count, DeltaSource, EventTimeSessionWindows, Pipeline, Sum, TumblingEventTimeWindows
from tidegate import WatermarkStrategy, Windows

HOUR = timedelta(hours=1)


def follow(name, source, time, key, assigner, **aggregate):
    return Pipeline(
        name=name,
        source=DeltaSource(source, timestamp=time, changes="correct"),
        key=(key,),
        watermark=WatermarkStrategy.for_bounded_out_of_orderness(HOUR),
        compute=Windows(assigner, allowed_lateness=12 * HOUR, aggregate=aggregate),
    )


SESSIONS, SHIFTS = EventTimeSessionWindows.with_gap(HOUR / 2), TumblingEventTimeWindows.of(3 * HOUR)
visits = follow("visits", "events", "at", "user", SESSIONS, clicks=Count(), total=Sum("value"))
shifts = follow(
    "shifts", "visits/windows", "window_start", "user", SHIFTS,
    sessions=Count(), clicks=Sum("clicks"), total=Sum("total"),
)
days = follow(
    "days", "shifts/windows", "window_start", "sessions", TumblingEventTimeWindows.of(24 * HOUR),
    users=Count(), total=Sum("total"),
)
"""

USERS = "abcdef"

Row: TypeAlias = tuple[Any, ...]


class Copy(Protocol):
    """A copy of a table `windows` that follows its change feed."""

    def follow(self) -> None:
        """Read what is new."""

    def erase(self, user: str) -> None:
        """Erase a user, as the owner of a copy has to do."""

    def rows(self) -> Counter[Row]:
        """Its rows."""


def rows_of(table: pa.Table) -> Counter[Row]:
    """Return the rows without column `epoch`, which a restore numbers anew."""
    names = sorted(name for name in table.column_names if name != "epoch")
    return Counter(zip(*(table[name].to_pylist() for name in names), strict=True))


@dataclass
class FeedCopy:
    """A copy by the change feed as deltalake reads it; `moved` counts rows that it deleted and added again."""

    path: str
    version: int = -1
    kept: Counter[Row] = field(default_factory=Counter)
    moved: int = 0
    changed: int = 0

    def follow(self) -> None:
        table = DeltaTable(self.path)
        if table.version() == self.version:
            return
        feed = pa.table(table.load_cdf(starting_version=self.version + 1, ending_version=table.version()).read_all())
        ours = [name for name in feed.column_names if not name.startswith("_c")]
        # Arrow does not filter views of strings.
        schema = pa.schema(
            [(field.name, pa.string() if field.type == pa.string_view() else field.type) for field in feed.schema]
        )
        feed = feed.cast(schema)
        inserted, deleted = (feed.filter(pc.equal(feed["_change_type"], kind)) for kind in ("insert", "delete"))
        plus, minus = rows_of(inserted.select(ours)), rows_of(deleted.select(ours))
        self.moved += (plus & minus).total() * 2
        self.changed += (plus - minus).total() + (minus - plus).total()
        self.kept.update(plus)
        self.kept.subtract(minus)
        assert min(self.kept.values(), default=0) >= 0, "a row that the copy does not have was deleted"
        self.kept = +self.kept
        self.version = table.version()

    def erase(self, user: str) -> None:
        self.kept = Counter({row: number for row, number in self.kept.items() if user not in row})

    def rows(self) -> Counter[Row]:
        return self.kept


@dataclass
class Chain:
    """The chain in a folder, its drawn life, and the copies that follow its first two pipelines."""

    folder: Path
    seed: int
    copies: dict[str, Copy] = field(default_factory=dict)
    steps: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.folder / "tidegate.toml").write_text(TOML)
        (self.folder / "chained.py").write_text(CODE)
        self.random = random.Random(self.seed)
        self.hours = 0

    @property
    def project(self) -> Project:
        """The project, loaded anew."""
        return Project(self.folder / "tidegate.toml")

    def path(self, table: str) -> str:
        """Return the path of a table in the warehouse."""
        return str(self.folder / "warehouse" / table)

    def append(self, number: int, first: float, last: float) -> None:
        """Append events at drawn hours."""
        times = [DAY0 + timedelta(hours=self.random.uniform(first, last)) for _ in range(number)]
        self.write([(self.random.choice(USERS), time, self.random.randint(1, 9)) for time in times])

    def write(self, events: list[tuple[str, datetime, int]]) -> None:
        """Append events."""
        users, times, values = zip(*events, strict=True)
        rows = {"user": pa.array(users), "at": pa.array(times, pa.timestamp("us", "UTC")), "value": pa.array(values)}
        write_deltalake(self.path("events"), pa.table(rows), mode="append")

    def run(self) -> None:
        """Run each pipeline over what there is, and check the copies."""
        for name in NAMES:
            self.project.stream(name)
        for name, copy in self.copies.items():
            copy.follow()
            assert copy.rows() == rows_of(DeltaTable(self.path(f"{name}/windows")).to_pyarrow_table()), self.steps

    def live(self, steps: int) -> None:
        """Run drawn steps; then reopen late rows, end all windows, and check the whole chain."""
        self.append(100, 0, 24)
        self.run()
        for _ in range(steps):
            self.hours += 12
            step = self.random.choice(
                (self.go_on, self.go_on, self.come_late, self.delete, self.update, self.restore, self.forget)
            )
            self.steps.append(step.__name__)
            step()
            self.run()
        for name in NAMES[1:]:
            self.project.late.reopen(name)
        self.steps.append("end")
        for later in (60, 100, 140):
            self.write([("z", DAY0 + timedelta(hours=self.hours + later), 1)])
            self.run()
        self.check()

    def go_on(self) -> None:
        self.append(50, self.hours, self.hours + 14)

    def come_late(self) -> None:
        self.append(15, max(0, self.hours - 20), self.hours + 2)

    def delete(self) -> None:
        DeltaTable(self.path("events")).delete(f"value = {self.random.randint(1, 9)} AND user = '{self._user()}'")

    def update(self) -> None:
        value, other = self.random.sample(range(1, 10), 2)
        DeltaTable(self.path("events")).update({"value": str(other)}, predicate=f"value = {value}")

    def restore(self) -> None:
        """Restore the first pipeline: the others follow."""
        epochs = sorted(entry["epoch"] for entry in self.project.snapshots.list("visits").snapshots)
        self.project.restore("visits", self.random.choice(epochs[-4:]))

    def forget(self) -> None:
        """Erase a user from the source and from every pipeline whose key names users, as their owner has to."""
        user = self._user()
        if self.random.random() < 0.5:
            DeltaTable(self.path("events")).delete(f"user = '{user}'")
        self.run()
        for name in NAMES[:2]:
            self.project.forget(name, keys=[[user]])
        for copy in self.copies.values():
            copy.erase(user)

    def _user(self) -> str:
        return self.random.choice(USERS)

    def check(self) -> None:
        """Compare the windows of the second pipeline with those of the first, and of the third with the second's.

        A user who was erased from the second is still in the sums of the third, so these are compared without `forget`.
        """
        visits, shifts, days = (DeltaTable(self.path(f"{name}/windows")).to_pandas() for name in NAMES)
        visits["shift"], shifts["day"] = visits.window_start.dt.floor("3h"), shifts.window_start.dt.floor("D")
        sessions = visits.groupby(["user", "shift"]).agg(
            sessions=("clicks", "size"), clicks=("clicks", "sum"), total=("total", "sum")
        )
        self._compare(sessions, shifts.set_index(["user", "window_start"]))
        if "forget" not in self.steps:
            users = shifts.groupby(["sessions", "day"]).agg(users=("total", "size"), total=("total", "sum"))
            self._compare(users, days.set_index(["sessions", "window_start"]))

    def _compare(self, wanted: pd.DataFrame, found: pd.DataFrame) -> None:
        """Compare all windows but those of the last hours, which have not fired."""
        until = pd.Timestamp(DAY0 + timedelta(hours=self.hours + 60)).floor("D")
        wanted, found = (
            frame[wanted.columns][frame.index.get_level_values(1) < until].sort_index() for frame in (wanted, found)
        )
        wanted.index.names = found.index.names
        pd.testing.assert_frame_equal(found, wanted, check_dtype=False, obj=f"seed {self.seed}: {self.steps}")
