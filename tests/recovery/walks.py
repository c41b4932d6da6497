"""Random walks over a pipeline's tables: its commands, crashes, and actions of others. After each step the tables are
compared with a computation from scratch over the rows that the snapshot has read. A refusal counts as correct only if
it names a remedy, which is then applied as a user would apply it.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from deltalake import write_deltalake

from tests.lake import DAY0, conserved
from tests.pipelines.by_hand import START_OF_DRIVER, ByHand, HandPlan, Row
from tests.recovery.arrivals import STEPS
from tidegate.pipelines.definition.recorded import Position
from tidegate.pipelines.epoch.commit import commit
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.snapshots import lineages
from tidegate.pipelines.ledger.snapshots.forget import forget
from tidegate.pipelines.ledger.snapshots.head import Snapshot, list_snapshots, read_snapshot
from tidegate.pipelines.ledger.snapshots.publish import publish_table
from tidegate.pipelines.ledger.snapshots.recovery import recover
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.ledger.snapshots.retention import Retention, prune, vacuum
from tidegate.pipelines.ledger.snapshots.savepoint import (
    create_savepoint,
    delete_savepoint,
    find_snapshot,
    list_savepoints,
)
from tidegate.pipelines.ledger.tables.compaction import compact
from tidegate.pipelines.ledger.tables.damage import remove_tables
from tidegate.pipelines.ledger.tables.pipeline_tables import ALL, PUBLISHED
from tidegate.pipelines.ledger.tables.table_log import TableLog
from tidegate.pipelines.remedy import Act
from tidegate.windowing.time import to_millis

GAP = timedelta(minutes=30)
NOW = 1_800_000_000_000
FORGOTTEN = "zed"


def rows_of(number: int) -> list[Row]:
    """Return the rows of a source commit: a session of its own, parts of long ones, and from the third commit on a late
    row.
    """
    begin = base(number)
    rows = [("ann", begin + timedelta(minutes=number % 20), number), (FORGOTTEN, begin, number)]
    if number % 4:
        rows += [("bob", begin + timedelta(minutes=minutes), number) for minutes in (0, 20, 40)]
    if number > 2:
        rows.append(("cid", DAY0 - timedelta(hours=9), number))
    return rows


def base(number: int) -> datetime:
    """Return the first event time of a source commit, which is also the watermark after it."""
    return DAY0 + timedelta(hours=number)


def sessions_until(number: int) -> Counter[tuple[str, int, int]]:
    """Return key, count and sum of each session that has fired after this many commits, from scratch."""
    found: Counter[tuple[str, int, int]] = Counter()
    rows = [row for commit in range(1, number + 1) for row in rows_of(commit) if row[0] != "cid"]
    for user in sorted({row[0] for row in rows}):
        session: list[Row] = []
        for row in [*sorted(row for row in rows if row[0] == user), None]:
            if session and (row is None or row[1] > session[-1][1] + GAP):
                if session[-1][1] + GAP - timedelta(milliseconds=1) <= base(number):
                    found[user, len(session), sum(value for _, _, value in session)] += 1
                session = []
            session = session if row is None else [*session, row]
    return found


@dataclass
class Walk:
    """A pipeline, and what happens to it.

    Args:
        folder: folder for the pipeline.
        seed: seed of all random choices.
    """

    folder: Path
    seed: int
    by_hand: ByHand = field(init=False)
    draw: random.Random = field(init=False)
    told: list[str] = field(default_factory=list)
    forgotten: bool = False
    pruned: bool = False
    read: int = 0

    def __post_init__(self) -> None:
        self.by_hand, self.draw = ByHand(self.folder), random.Random(self.seed)

    def run(self, steps: int) -> None:
        """Take this many steps, and check everything after each."""
        self._stream()
        for _ in range(steps):
            step = self.draw.choice(self._steps())
            self.told.append(step.__name__.strip("_"))
            try:
                self._heeding(step)
                self.check()
            except Exception as error:
                raise AssertionError(f"seed {self.seed}, after {', '.join(self.told)}: {error}") from error
        self._check_listed()

    def _steps(self) -> list[Callable[[], None]]:
        often = [self._stream, self._stream, self._crash, self._restore, self._state_set_back, self._torn]
        once = [self._again, self._anew, self._savepoint, self._savepoint, self._restore_savepoint, self._restore_stale]
        return [*often, *often, *once, self._vacuum, self._compact, self._forget, self._prune, self._delete_savepoint]

    # --- steps ---------------------------------------------------------------------------------

    def _stream(self) -> None:
        self.by_hand.parallelism = self.draw.randint(1, 3)
        for _ in range(self.draw.randint(1, 3)):
            self._epoch(recover(self.by_hand.tables))

    def _crash(self) -> None:
        self._epoch(recover(self.by_hand.tables), crash=self.draw.choice(STEPS))

    def _epoch(self, parent: Snapshot | None, crash: str = STEPS[-1], **changes: Any) -> None:
        """Read one or two commits, continuing from a snapshot; up to a step."""
        done = 0 if parent is None else parent.manifest.positions["events"].version
        last = done + (1 if done == 0 else self.draw.randint(1, 2))
        rows = tuple(row for number in range(done + 1, last + 1) for row in rows_of(number))
        plan = self.by_hand.planned(rows, base(last), parent=parent).plan
        before = to_millis(DAY0) - 1 if parent is None else parent.manifest.watermark
        plan = replace(plan, watermark_before=before, positions={"events": Position(version=last)})
        if parent is None and plan.head is not None:
            plan = replace(plan, parent=None).replacing(plan.head)
        plan = replace(plan, **changes)
        if crash == "planned":
            return
        outcomes = HandPlan(plan, rows).operate()
        if crash == "operated":
            return
        manifest = commit(plan, outcomes, {})
        self.read = max(self.read, last)
        for table in PUBLISHED[: STEPS.index(crash) - 2]:
            publish_table(self.by_hand.tables, manifest, table)

    def _again(self) -> None:
        """Run the newest epoch again from its parent, as a backfill reruns a corrected interval."""
        head = recover(self.by_hand.tables)
        assert head is not None
        versions = {entry.manifest["epoch"]: entry.version for entry in list_snapshots(self.by_hand.tables)}
        parent = head.manifest.parent
        if head.manifest.kind == "stream" and parent in versions:
            self._epoch(read_snapshot(self.by_hand.tables, versions[parent]), replaced_epochs=(head.manifest.epoch,))

    def _anew(self) -> None:
        recover(self.by_hand.tables)
        self._epoch(None)

    def _restore(self, keep_stale: bool = False) -> None:
        entries = list_snapshots(self.by_hand.tables)
        epoch = self.draw.choice(entries).manifest["epoch"]
        whole = lineages.restorable(self.by_hand.tables, entries)[epoch]
        try:
            self._back_to(str(epoch), keep_stale=keep_stale)
        except Refused:
            assert not whole, f"epoch {epoch} is listed as one that comes back whole"
            raise

    def _restore_stale(self) -> None:
        self._restore(keep_stale=True)

    def _savepoint(self) -> None:
        name, now = f"after-{len(self.told)}", NOW + len(self.told)
        entries = list_snapshots(self.by_hand.tables)
        recover(self.by_hand.tables)
        create_savepoint(
            self.by_hand.tables, find_snapshot(self.by_hand.tables, str(entries[0].manifest["epoch"])), name, now
        )

    def _restore_savepoint(self) -> None:
        if names := [entry.name for entry in list_savepoints(self.by_hand.tables)]:
            self._back_to(f"savepoint:{self.draw.choice(names)}")

    def _delete_savepoint(self) -> None:
        if names := [entry.name for entry in list_savepoints(self.by_hand.tables)]:
            delete_savepoint(self.by_hand.tables, self.draw.choice(names))

    def _vacuum(self) -> None:
        with Lease(self.by_hand.tables, "vacuum", lambda: NOW):
            vacuum(self.by_hand.tables, Retention(self.draw.randint(1, 4), timedelta(0)), NOW)

    def _compact(self) -> None:
        recover(self.by_hand.tables)
        for table in PUBLISHED:
            compact(self.by_hand.tables, table)

    def _forget(self) -> None:
        with Lease(self.by_hand.tables, "forget", lambda: NOW):
            forget(self.by_hand.tables, self.by_hand.pipeline, [[FORGOTTEN]], NOW)
        self.forgotten = True
        for table in ("state", "results", "late"):
            assert FORGOTTEN not in self.by_hand.rows(table)["user"].to_pylist(), table

    def _prune(self) -> None:
        newest = list_snapshots(self.by_hand.tables)[0].manifest["epoch"]
        prune(self.by_hand.tables, START_OF_DRIVER + self.draw.randint(1, newest) * 60_000, NOW)
        self.pruned = True

    def _state_set_back(self) -> None:
        """Somebody runs Delta's own RESTORE on table state."""
        handle = self.by_hand.tables.open("state")
        entry = self.draw.choice(list_snapshots(self.by_hand.tables)[:3])
        if entry.version < handle.version():
            handle.restore(entry.version)

    def _published_set_back(self) -> None:
        """Somebody runs Delta's own RESTORE on a published table."""
        table = self.draw.choice(PUBLISHED)
        if versions := TableLog(self.by_hand.tables, table).recent[-4:-1]:
            self.by_hand.tables.open(table).restore(self.draw.choice(versions))

    def _changed_by_others(self) -> None:
        """Somebody changes rows of published tables, and the remedies in the refusals are applied."""
        for _ in range(self.draw.randint(1, 4)):
            often = [self._deleted, self._published_set_back]
            step = self.draw.choice([*often, self._updated, self._added, self._optimized, self._compact, self._stream])
            self.told.append(f"[{step.__name__.strip('_')}]")
            self._heeding(step)

    def _deleted(self) -> None:
        table = self.draw.choice(("results", "late", "epochs"))
        self.by_hand.tables.open(table).delete(f"epoch = {self._epoch_in(table)}")

    def _updated(self) -> None:
        number = self._epoch_in("results")
        self.by_hand.tables.open("results").update(predicate=f"epoch = {number}", updates={"total": "total + 1"})

    def _added(self) -> None:
        table = self.draw.choice(("results", "late", "epochs"))
        write_deltalake(self.by_hand.tables.path(table), self.by_hand.rows(table)[:1], mode="append")

    def _optimized(self) -> None:
        self.by_hand.tables.open(self.draw.choice(PUBLISHED)).optimize.compact()

    def _epoch_in(self, table: str) -> int:
        return int(self.draw.choice(sorted({*self.by_hand.rows(table)["epoch"].to_pylist()}) or [0]))

    def _torn(self) -> None:
        """A power loss removes the end of the newest entry of a table's log, or all of it."""
        log = Path(self.by_hand.tables.path(self.draw.choice(ALL)), "_delta_log")
        entry = max(log.glob("*.json"))
        if int(entry.stem) and not (log / f"{entry.stem}.checkpoint.parquet").exists():
            whole = entry.read_bytes()
            entry.write_bytes(whole[: self.draw.choice((0, len(whole) - 20))])

    # --- what users do -------------------------------------------------------------------------

    def _back_to(self, target: str, keep_stale: bool = False) -> None:
        tables = self.by_hand.tables
        restore(tables, find_snapshot(tables, target), NOW, keep_stale)

    def _start_again(self) -> None:
        """Restart, and read all the commits again that were read before."""
        remove_tables(self.by_hand.tables)
        # The source still has the rows of the key.
        self.forgotten = self.pruned = False
        until, head = self.read, None
        while head is None or head.manifest.positions["events"].version < until:
            self._epoch(head)
            head = recover(self.by_hand.tables)

    def _heeding(self, step: Callable[[], None]) -> None:
        """Take a step; if it is refused, do what the refusal says, at most three times."""
        for _ in range(4):
            try:
                step()
                recover(self.by_hand.tables)
            except Refused as refused:
                step = self._way_on(refused)
            else:
                return
        raise AssertionError("the ways on lead nowhere")

    def _way_on(self, refused: Refused) -> Callable[[], None]:
        """Return the first restore that a refusal names."""
        ways = [way for way in refused.remedies if way.act in (Act.RESTORE, Act.RESTORE_TABLES, Act.RESTART)]
        assert ways, f"no way on: {refused}"
        self.told.append(f"({ways[0].act} {ways[0].at})")
        return self._start_again if ways[0].act is Act.RESTART else _bound(self._back_to, str(ways[0].at))

    # --- what must hold ------------------------------------------------------------------------

    def check(self) -> None:
        """Compare the tables with the rows that the newest snapshot has read."""
        manifest = self.by_hand.head().manifest
        done = manifest.positions["events"].version
        rows = {table: self.by_hand.rows(table).to_pylist() for table in ("results", "late", "epochs")}
        rows = {table: [row for row in found if not row["stale"]] for table, found in rows.items()}
        assert max(Counter(row["epoch"] for row in rows["epochs"]).values()) == 1, "an epoch is there twice"
        assert conserved(rows["epochs"])
        found = Counter((row["user"], row["events"], row["total"]) for row in rows["results"])
        expected = sessions_until(done)
        if self.forgotten:
            found, expected = (
                Counter({k: n for k, n in one.items() if k[0] != FORGOTTEN}) for one in (found, expected)
            )
        late = Counter(row["value"] for row in rows["late"])
        expected_late = Counter(dict.fromkeys(range(3, done + 1), 1))
        assert not found - expected, f"windows too many: {found - expected}"
        assert not late - expected_late, f"late rows too many: {late - expected_late}"
        assert found == expected, f"windows that vanished after {done} commits: {expected - found}"
        assert self.pruned or late == expected_late, f"late rows that vanished: {expected_late - late}"
        read = sum(row["events_in"] for row in rows["epochs"])
        assert read == sum(len(rows_of(number)) for number in range(1, done + 1)), "epochs that vanished"

    def _check_listed(self) -> None:
        """Restore every listed snapshot and savepoint in a copy."""
        tables = self.by_hand.tables
        named = [str(entry.manifest["epoch"]) for entry in list_snapshots(tables)]
        named += [f"savepoint:{entry.name}" for entry in list_savepoints(tables)]
        for target in self.draw.sample(named, min(3, len(named))):
            copy = in_a_copy(self, self.folder.with_name(f"{self.folder.name}-{target.replace(':', '-')}"))
            copy.told.append(f"restore {target} in a copy")
            copy._heeding(_bound(copy._back_to, target))
            copy.check()


def in_a_copy(walk: Walk, folder: Path) -> Walk:
    """A walk that continues in a copy of the tables."""
    shutil.copytree(walk.folder, folder)
    copy = Walk(folder, walk.seed, told=[*walk.told])
    copy.forgotten, copy.pruned, copy.read = walk.forgotten, walk.pruned, walk.read
    return copy


def _bound(step: Callable[..., None], *arguments: Any) -> Callable[[], None]:
    return lambda: step(*arguments)
