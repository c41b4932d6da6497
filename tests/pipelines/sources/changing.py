"""A Delta table to which random things happen, written by deltalake: rows are added, deleted, changed and added
again.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from tests.commit_times import date_commit
from tests.lake import DAY0, EVENTS, Lake

MINUTE = timedelta(minutes=1)
USERS = ("ann", "bob", "cem", "dan")

Seen = tuple[str | None, datetime | None, int]
"""User, time and value of a row."""


@dataclass
class Changing:
    """A source table, and a draw that changes it.

    Args:
        lake: the project; the table is `events`.
        draw: decides what happens.
        hours: length of the span after DAY0 in which events lie, hours.
        commits: number of commits so far, which are an hour apart.
    """

    lake: Lake
    draw: random.Random
    hours: int = 6
    commits: int = 0

    @property
    def table(self) -> DeltaTable:
        """The table at its newest version."""
        return DeltaTable(self.lake.path("events"))

    @property
    def version(self) -> int:
        """The newest version."""
        return len(list(Path(self.lake.path("events"), "_delta_log").glob("*.json"))) - 1

    def happen(self) -> str:
        """Let something happen, and return its name."""
        acts = (self.append, self.append, self.delete, self.update, self.merge, self.overwrite, self.replace_hours)
        act = self.draw.choice([*acts, self.restore, self.compact, self.rewrite, self.delete_a_user])
        before = self.version
        act()
        if self.version > before:
            self.settle()
        return act.__name__

    def rows_of(self, version: int) -> Counter[Seen]:
        """Return the rows of a version, with their numbers."""
        rows = DeltaTable(self.lake.path("events"), version=version).to_pyarrow_table().to_pylist()
        return Counter((row["user"], row["at"], row["value"]) for row in rows)

    def drawn(self, count: int) -> pa.Table:
        """Return some rows; a few of them have no user or no time."""
        rows = [
            {
                "user": None if self.draw.random() < 0.05 else self.draw.choice(USERS),
                "at": None if self.draw.random() < 0.05 else self.moment(),
                "value": self.draw.randrange(4) * 600_000 + 300_000,
            }
            for _ in range(count)
        ]
        return pa.Table.from_pylist(rows, schema=EVENTS)

    def moment(self) -> datetime:
        """Return a time for an event."""
        return DAY0 + self.draw.randrange(self.hours * 12) * 5 * MINUTE

    # --- what happens ------------------------------------------------------------------------

    def append(self) -> None:
        write_deltalake(self.lake.path("events"), self.drawn(self.draw.randrange(1, 12)), mode="append")

    def delete(self) -> None:
        value = self.draw.randrange(4) * 600_000 + 300_000
        self.table.delete(f"value = {value} and user = '{self.draw.choice(USERS)}'")

    def delete_a_user(self) -> None:
        self.table.delete(f"user = '{self.draw.choice(USERS)}'")

    def update(self) -> None:
        new = self.draw.choice([{"value": "value + 600000"}, {"user": "'ann'"}, {"value": "value"}])
        self.table.update(new, predicate=f"user = '{self.draw.choice(USERS)}'")

    def merge(self) -> None:
        rows = self.drawn(6).group_by(["user", "at"]).aggregate([("value", "max")]).rename_columns(EVENTS.names)
        merge = self.table.merge(
            rows.cast(EVENTS), "t.user = s.user and t.at = s.at", source_alias="s", target_alias="t"
        )
        merge.when_matched_update({"value": "s.value"}).when_not_matched_insert_all().execute()

    def overwrite(self) -> None:
        self._overwrite(self.drawn(self.draw.randrange(30)))

    def rewrite(self) -> None:
        """Overwrite the table with the same rows."""
        self._overwrite(self.table.to_pyarrow_table().cast(EVENTS))

    def _overwrite(self, rows: pa.Table) -> None:
        """Overwrite the table with rows, and sometimes give it other partition columns."""
        by = self.draw.choice((None, None, ["user"], ["value"], ["at"]))
        write_deltalake(
            self.lake.path("events"), rows, mode="overwrite", partition_by=by, schema_mode="overwrite" if by else None
        )

    def replace_hours(self) -> None:
        """Overwrite a span of time, as a load of a partition does."""
        start = DAY0 + self.draw.randrange(self.hours) * 60 * MINUTE
        end = start + self.draw.choice([1, 2]) * 60 * MINUTE
        new = [row for row in self.drawn(12).to_pylist() if row["at"] is not None and start <= row["at"] < end]
        kind = 'Timestamp(Microsecond, Some("UTC"))'
        first, last = (f"arrow_cast('{time.strftime('%Y-%m-%dT%H:%M:%SZ')}', '{kind}')" for time in (start, end))
        span = [f"at >= {first}", f"at < {last}"]
        rows = pa.Table.from_pylist(new, schema=EVENTS)
        write_deltalake(self.lake.path("events"), rows, mode="overwrite", predicate=" and ".join(span))

    def restore(self) -> None:
        if self.version:
            self.table.restore(self.draw.randrange(self.version))

    def compact(self) -> None:
        self.table.optimize.compact()

    def settle(self, hours: float = 1.0, version: int | None = None) -> None:
        """Give a commit (None: the newest) and its files a new time, some hours after the previous one."""
        self.commits += 1
        self.lake.clock.now += int(hours * 3_600_000)
        number = self.version if version is None else version
        log = Path(self.lake.path("events"), "_delta_log", f"{number:020d}.json")
        date_commit(log, self.lake.clock.now, with_files=True)
