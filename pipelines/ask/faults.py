"""Differences between what is published and what the source, or another table, implies.

The windows, state and late rows of sampled keys are compared with their lives (`lives`), and epochs, late rows and
manifests with each other.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.pipelines.ask.history import History, NoHistory, Rows, late_rows_of
from tidegate.pipelines.ask.lives import BASE, STEP, TIME, Bounds, Life
from tidegate.pipelines.definition import epochs, late, results
from tidegate.pipelines.definition import state as state_table
from tidegate.pipelines.definition.names import count_of
from tidegate.pipelines.ledger.manifest import Manifest, is_on, line_after
from tidegate.pipelines.ledger.snapshots.compatibility import left_behind, migration_of
from tidegate.pipelines.ledger.snapshots.head import (
    Snapshot,
    list_snapshots,
    state_rows,
)
from tidegate.pipelines.ledger.snapshots.publish import epoch_row
from tidegate.pipelines.ledger.snapshots.published_head import readable_snapshot
from tidegate.pipelines.ledger.tables.keys import key_columns, key_schema
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.storage.warehouse import arrow_schema
from tidegate.windowing.aggregates.bound import AggregateColumns
from tidegate.windowing.columnar.key_codes import encode_keys
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.lateness import is_late
from tidegate.windowing.operators.window.snapshot import without_slices
from tidegate.windowing.panes import Accumulation
from tidegate.windowing.state.migration import migrated
from tidegate.windowing.time import MIN_TIMESTAMP, Millis, show_millis, to_millis
from tidegate.windowing.timestamps import in_schema
from tidegate.windowing.triggers import EventTimeTrigger
from tidegate.windowing.windows import TimeWindow

_TOLERANCE = 1e-9
"""Relative difference between sums of doubles that are added in a different order."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A difference between what is published and what the source, or another table, implies.

    Args:
        kind: `value`, `missing` or `unexpected` (a window), `state`, `late`, `epoch` or `manifest`.
        epoch: the epoch; None if the window was never published.
        key: the key, by column; empty for an epoch.
        start: start of the window, int64 epoch milliseconds; for a late row, its event time.
        expected: what should be there.
        found: what is there.
    """

    kind: str
    epoch: int | None
    key: dict[str, Any]
    start: Millis | None
    expected: Any
    found: Any


@dataclass(frozen=True, slots=True)
class Draw:
    """The sampled keys: those whose hash, mixed with the seed, is below a limit. At least one published key is sampled.

    Args:
        key: names of the key columns.
        seed: the seed.
        limit: the limit, up to 2 ** 64.
    """

    key: tuple[str, ...]
    seed: int
    limit: int

    @classmethod
    def of(cls, windows: pa.Table, key: tuple[str, ...], share: float, seed: int) -> Draw:
        """Return the sample of a share of the keys, including at least one key of these windows."""
        everything = cls(key, seed, 1 << 64)
        limit = min(1 << 64, math.ceil(share * 2.0**64))
        least = int(everything._mixed(windows).min()) if len(windows) else 0
        return cls(key, seed, max(limit, least + 1))

    def flags(self, rows: pa.Table) -> npt.NDArray[np.bool_]:
        """Return a flag for each row: whether its key is sampled."""
        if self.limit >= 1 << 64:
            return np.ones(len(rows), np.bool_)
        flags: npt.NDArray[np.bool_] = self._mixed(rows) < np.uint64(self.limit)
        return flags

    def _mixed(self, rows: pa.Table) -> npt.NDArray[np.uint64]:
        if not self.key or not len(rows):
            return np.zeros(len(rows), np.uint64)
        schema: KeySchema = key_schema(rows.schema, self.key)
        keys = encode_keys(schema, ({name: rows[name] for name in self.key}, len(rows)))
        mixed = keys.hashes ^ np.uint64(self.seed * 0x9E3779B97F4A7C15 % 2**64)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
        mixed ^= mixed >> np.uint64(31)
        of_rows: npt.NDArray[np.uint64] = mixed[keys.codes[0]]
        return of_rows


@dataclass
class WindowFaults:
    """Differences of sampled windows from their recomputed lives, and by reason how many can't be recomputed."""

    faults: list[Fault] = field(default_factory=list)
    windows: int = 0
    keys: int = 0
    unverifiable: Counter[str] = field(default_factory=Counter)


def faults_of_windows(
    history: History, snapshot: Snapshot, rows_of: Mapping[str, pa.Table], draw: Draw
) -> WindowFaults:
    """Compare the windows, state and late rows of sampled keys with their lives.

    `rows_of` has the current windows of sampled keys, and all late rows. If the history starts at an epoch, only
    windows with a later pane are compared.

    Raises:
        Refused: no window can be recomputed.
    """
    _check_plain(history)
    names, late_rows = history.source.bound.key.names, rows_of[late.NAME]
    of_late = key_columns(late.NAME, late_rows.schema, names, history.source.bound.pipeline.derived_key)
    # Then any key with a row at the same time may own the late row.
    of_any_key = set(late.event_times(late_rows).tolist()) if names and not of_late and len(late_rows) else set()
    late_rows = late_rows.slice(0, 0 if of_any_key else None)
    late_rows = late_rows.drop_columns(
        [name for name in names if name not in of_late and name in late_rows.schema.names]
    )
    renamed = dict(zip(of_late, names, strict=False))
    late_rows = late_rows.rename_columns([renamed.get(name, name) for name in late_rows.schema.names])
    history, arrived = history.read(draw.flags)
    by_key = _by_key(arrived.rows, names)
    published = _by_key(rows_of[results.NAME].to_pylist(), names)
    late_by_key = _by_key(late_rows_of(late_rows.filter(pa.array(draw.flags(late_rows)))), names)
    states = _states(history, snapshot, draw)
    types = history.source.bound.key.types
    found = WindowFaults(keys=len(by_key))
    for key in dict.fromkeys([*by_key, *published, *states, *late_by_key]):
        forgotten = history.forgotten(tuple(pa.scalar(value, kind) for value, kind in zip(key, types, strict=True)))
        left = [row for row in by_key.get(key, []) if history.steps[row[STEP]].epoch > (forgotten or 0)]
        rows, of_key = replace(arrived, rows=left), late_by_key.get(key, [])
        life = history.lives(rows, of_key, published.get(key, []))
        # Rows of the first step may be from before the key was forgotten, and so may those of reopened windows, which
        # are computed from the source.
        whole = [history.begins, *(row.get(late.REOPENED) for row in of_key)]
        is_cut = forgotten is None or max(epoch or 0 for epoch in whole) >= forgotten > 0
        may_be_late = any(row[TIME] in of_any_key for row in left)
        compared = _Compared(history, rows, life, dict(zip(names, key, strict=True)), is_cut, may_be_late, found)
        compared.windows(published.get(key, []))
        compared.state(states.get(key, {}))
        compared.late(of_key)
    return found


def _check_plain(history: History) -> None:
    """Check that the plain rules can compute the values of the windows.

    Raises:
        NoHistory: they can't.
    """
    windows = history.windows
    if not isinstance(windows.aggregate, AggregateColumns) or windows.process is not None:
        raise NoHistory("only windows with named aggregates can be recomputed, not your own functions")
    if windows.evictor is not None:
        raise NoHistory(f"{windows.evictor!r} leaves out elements")
    if not isinstance(windows.effective_trigger, EventTimeTrigger):
        raise NoHistory(f"{windows.effective_trigger!r} fires at times other than the end of a window")
    if windows.accumulation is Accumulation.DISCARDING:
        raise NoHistory("with mode='discarding' each pane holds only a part of its window")


def _by_key(rows: Iterable[dict[str, Any]], names: Sequence[str]) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in names), []).append(row)
    return found


_ROWS_GONE = "their rows are no longer in the source"
_BEFORE_FIRST = "they begin before the first interval, and it is no longer known when their rows were added"
_MAY_BE_PRUNED = "late rows from before epoch {} were pruned"
_MAY_BE_FORGOTTEN = "rows of their key may be from before it was forgotten"
_WITHOUT_KEY = "rows of their key may be late, and table late lacks the key columns"
_DROPPED = "table epochs no longer has the epochs before {}, which read or published them"
_OTHER_CODE = "they were computed by other code, which ran up to epoch {}"
_ORDER_UNKNOWN = "they have rows from before epoch {}, whose order of arrival is no longer known"


@dataclass
class _Compared:
    """The comparison of what is published for a key with the key's life.

    `is_cut` is True if an unknown part of the rows may be from before the key was forgotten; `may_be_late`, if a late
    row without a key may be one of the rows.
    """

    history: History
    rows: Rows
    life: Life
    key: dict[str, Any]
    is_cut: bool
    may_be_late: bool
    found: WindowFaults

    def windows(self, published: Sequence[Mapping[str, Any]]) -> None:
        """Compare the current windows."""
        panes = {(to_millis(row["window_start"]), to_millis(row["window_end"])): row for row in published}
        after, emitted_after = self.history.after, self.life.emitted
        for bounds in dict.fromkeys([*self.life.panes, *panes]):
            numbers, pane = self.life.panes.get(bounds), panes.get(bounds)
            if after is not None and bounds not in emitted_after and (pane is None or pane["epoch"] <= after):
                continue
            epoch = None if pane is None else pane["epoch"]
            expected = None if numbers is None else self.history.result_of(self.rows, numbers)
            if expected is None or pane is None:
                kind, found = ("unexpected", {"window_end": bounds[1]}) if expected is None else ("missing", None)
                is_kept = self._add(Fault(kind, epoch, self.key, bounds[0], expected, found), bounds)
                self.found.windows += is_kept and expected is not None
            elif wrong := differing(self.history, expected, pane):
                values = {name: expected[name] for name in wrong}, {name: pane[name] for name in wrong}
                self.found.windows += self._add(Fault("value", epoch, self.key, bounds[0], *values), bounds)
            else:
                self.found.windows += 1

    def state(self, held: Mapping[Bounds, Any]) -> None:
        """Compare the open windows."""
        lower = self.history.lower
        cut = [bounds for bounds in held if bounds[0] < lower]
        for bounds in dict.fromkeys([*self.life.open_windows, *held]):
            if bounds in cut or any(start < lower and start <= bounds[0] and bounds[1] <= end for start, end in cut):
                continue
            numbers, value = self.life.open_windows.get(bounds), held.get(bounds)
            should = None if numbers is None else self.history.result_of(self.rows, numbers)
            if should is None or value is None or differing(self.history, should, value):
                self._add(Fault("state", self.history.manifest.epoch, self.key, bounds[0], should, value), bounds)

    def late(self, published: Sequence[Mapping[str, Any]]) -> None:
        """Compare the late rows that no window accepted, by their times. Reopened rows are in their windows."""
        begins, rows = self.history.begins, self.rows.rows
        expected = Counter(rows[number][TIME] for number in self.life.late)
        found = Counter(row[TIME] for row in published if row.get(late.REOPENED) is None and not row["stale"])
        if begins is not None:
            # A row that was already late by then comes from the table itself, and may since have been deleted from the
            # source.
            old = Counter(row[TIME] for row in published if row["epoch"] <= begins)
            expected, found = +(expected - old), +(found - old)
        for time in sorted({*expected, *found}):
            if expected[time] != found[time]:
                counts = count_of(expected[time], "row"), count_of(found[time], "row")
                fault = Fault("late", None, self.key, time, *counts)
                self._add(fault, (time, time), *(row["epoch"] for row in published if row[TIME] == time))

    def _add(self, fault: Fault, bounds: Bounds, *published: int) -> bool:
        """Record a difference and return True, or count the window as one that can't be recomputed.

        Its rows are within `bounds`, and `published` has further epochs that published them.
        """
        history, reason, gap = self.history, None, self._gap
        begins = history.begins
        if any(gap is None or (start <= bounds[1] + gap and bounds[0] - gap < end) for start, end in self.rows.gone):
            reason = _ROWS_GONE
        elif self.is_cut:
            reason = _MAY_BE_FORGOTTEN
        elif self.may_be_late:
            reason = _WITHOUT_KEY
        elif self._is_of_dropped_epochs(bounds, *published, *filter(None, [fault.epoch])):
            reason = _DROPPED.format(history.oldest_known)
        elif begins is not None and bounds[0] < history.first_start:
            reason = _BEFORE_FIRST
        elif self._is_by_other_code(bounds, *published, *filter(None, [fault.epoch])):
            reason = _OTHER_CODE.format(history.other_code[0])
        elif history.pruned and self._may_be_pruned(bounds):
            reason = _MAY_BE_PRUNED.format(history.pruned)
        elif begins is not None and history.after is None and self._depends_on_order:
            reason = _ORDER_UNKNOWN.format(begins)
        if reason is None:
            self.found.faults.append(fault)
        else:
            self.found.unverifiable[reason] += 1
        return reason is None

    def _is_by_other_code(self, bounds: Bounds, *published: int) -> bool:
        """Return True if other code published a span, or may have read one of its rows."""
        (until, gap), times = self.history.other_code, self.rows.by_other_code
        first, last = np.searchsorted(times, [bounds[0] - gap, bounds[1] + gap + 1])
        return bool(first < last) or min(published, default=until + 1) <= until

    def _is_of_dropped_epochs(self, bounds: Bounds, *published: int) -> bool:
        """Return True if epochs that table epochs no longer has may have read a row of a span, or published it.

        It is then unknown whether they pruned, reopened or forgot rows. A verification of newer windows needs none.
        """
        oldest, gap = self.history.oldest_known, self._gap
        if not oldest or self.history.after is not None:
            return False
        return min(published, default=oldest + 1) <= oldest or gap is None or bounds[0] - gap <= self._last_dropped

    @cached_property
    def _last_dropped(self) -> Millis:
        """Newest event time that epochs up to the oldest in table epochs may have read for the key."""
        history = self.history
        steps = [step for step in history.steps if history.read_by(step) <= history.oldest_known]
        read = [
            row[TIME] for row in self.rows.rows if history.read_by(history.steps[row[STEP]]) <= history.oldest_known
        ]
        return max([*read, *(step.after + (step.lag or 0) for step in steps)], default=MIN_TIMESTAMP)

    @property
    def _gap(self) -> Millis | None:
        """Distance at which a row may still belong to a window: 0 unless windows merge, None if it is unknown."""
        assigner = self.history.windows.assigner
        return assigner.gap_of_every_element if assigner.merges else 0

    def _may_be_pruned(self, bounds: Bounds) -> bool:
        """Return True if a row of a span may have been in table `late`, before it was pruned."""
        history, late_numbers = self.history, {*self.life.late}
        return any(
            start <= bounds[1] and bounds[0] <= end
            for number, row in enumerate(self.rows.rows)
            if (step := history.steps[row[STEP]]).kind == BASE or number in late_numbers
            if history.read_by(step) <= history.pruned
            for start, end in history.windows_of(row)
        )

    @property
    def _depends_on_order(self) -> bool:
        """True if a row may have missed some of its windows, or a session that it would otherwise have joined."""
        return self.history.windows.assigner.merges or any(
            len(self.history.windows_of(row)) > 1 for row in self.rows.rows
        )


def _states(history: History, snapshot: Snapshot, draw: Draw) -> dict[tuple[Any, ...], dict[Bounds, Any]]:
    """Return the value of each open window of sampled keys, by key and bounds."""
    bound = history.source.bound
    state = state_rows(history.tables.warehouse, snapshot)
    if (old := migration_of(bound, snapshot.manifest)) is not None:
        state = migrated(state, old, bound.state, left_behind(bound.pipeline))
    state = in_schema(state.filter(pa.array(draw.flags(state))), state_table.schema(bound.state))
    function = history.windows.aggregate
    assert isinstance(function, AggregateColumns)
    names, found = bound.key.names, dict[tuple[Any, ...], dict[Bounds, Any]]()
    for row in without_slices(bound.state.from_table(state), history.windows):
        if row.state_window is None or row.contents is None or not isinstance(row.window, TimeWindow):
            continue
        rests = iter(row.contents[len(function.functions) :])
        accumulators = [
            value if each.rest_type is None else each.restored(value, next(rests))
            for each, value in zip(function.functions, row.contents, strict=False)
        ]
        key = row.key if len(names) != 1 else (row.key,)
        found.setdefault(key, {})[(row.window.start, row.window.end)] = {
            name: None if f"acc_{name}" in (row.missing or ()) else each.get_result(value)
            for name, each, value in zip(function.names, function.functions, accumulators, strict=True)
        }
    return found


def differing(history: History, expected: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """Return the names of the results that differ, except sketches, which depend on the order of the rows."""
    function = history.windows.aggregate
    assert isinstance(function, AggregateColumns)
    return [
        name
        for name, each in zip(function.names, function.functions, strict=True)
        if not type(each).__module__.endswith("sketches") and not _same(expected[name], found[name])
    ]


def _same(expected: Any, found: Any) -> bool:
    if isinstance(expected, float) and isinstance(found, float):
        return math.isclose(expected, found, rel_tol=_TOLERANCE) or (math.isnan(expected) and math.isnan(found))
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        return expected.keys() == found.keys() and all(_same(expected[name], found[name]) for name in expected)
    if isinstance(expected, list | tuple) and isinstance(found, list | tuple):
        return len(expected) == len(found) and all(map(_same, expected, found))
    return bool(expected == found)


def faults_of_late_rows(rows: pa.Table, epoch_rows: pa.Table) -> Iterator[Fault]:
    """Check that each late row was late by the watermark recorded for it, and that this was its epoch's watermark."""
    by_epoch: dict[int, tuple[str, Any, Any, Millis]] = {}
    before: Any = None
    lateness: Millis | None = None
    for row in epoch_rows.sort_by("epoch").to_pylist():
        if (shape := row.get(epochs.SHAPE)) is not None:
            lateness = shape["lateness"] if lateness is None else min(lateness, shape["lateness"])
        by_epoch[row["epoch"]] = row["kind"], before, row["watermark"], lateness or 0
        before = row["watermark"] or before
    times = late.event_times(rows).tolist() if len(rows) else []
    for row, time in zip(rows.to_pylist(), times, strict=True):
        kind, first, last, allowed = by_epoch.get(row["epoch"], ("change", None, None, 0))
        if kind == "change" or row["watermark"] is None:
            continue
        judged = to_millis(row["watermark"])
        end = time if row["window_end"] is None else to_millis(row["window_end"]) - 1
        was_late = is_late(end, allowed, judged)
        is_of_epoch = (first is None or row["watermark"] >= first) and (last is None or row["watermark"] <= last)
        if not was_late or not is_of_epoch:
            expected = "at or after its window's cleanup" if not was_late else f"a watermark of epoch {row['epoch']}"
            yield Fault("late", row["epoch"], {}, time, expected, show_millis(judged))


def faults_of_epochs(epoch_rows: pa.Table, late_rows: pa.Table, erased: bool) -> Iterator[Fault]:
    """Check that every element of each epoch is accounted for, and that its late rows are in the table.

    If rows of table late were `erased`, by pruning or forgetting, there may be fewer.
    """
    rows = epoch_rows.to_pylist()
    gone: dict[int, int] = {}
    for row in rows:
        for deleted in row.get(epochs.DELETED) or ():
            gone[deleted["epoch"]] = gone.get(deleted["epoch"], 0) + (deleted["late"] or 0)
    counted = dict(zip(*np.unique(late_rows["epoch"].to_numpy(), return_counts=True), strict=True)) if late_rows else {}
    for row in rows:
        parts = sum(row.get(name) or 0 for name in ("on_time", "late", "no_window", "rejected", "dropped"))
        if parts != row["events_in"]:
            yield Fault("epoch", row["epoch"], {}, None, f"events_in {parts}", f"events_in {row['events_in']}")
        found = int(counted.get(row["epoch"], 0)) + gone.get(row["epoch"], 0)
        if not erased and row["kind"] != "change" and found != row["late"]:
            yield Fault(
                "late", row["epoch"], {}, None, f"{count_of(row['late'], 'row')} in table late", count_of(found, "row")
            )


def faults_of_manifests(
    tables: PipelineTables, newest: Manifest, epoch_rows: pa.Table, after: int = 0
) -> tuple[int, list[int], list[Fault]]:
    """Compare each retained manifest after an epoch with its row in table epochs, and with its parent.

    Return the number of manifests that were compared, the epochs whose manifests can't be read any more, and the
    differences. Another program's VACUUM may have removed the file of an older manifest.
    """
    manifests, unreadable, misplaced = _retained(tables, newest, after)
    if misplaced is not None:
        return len(manifests), unreadable, [misplaced]
    rows = {row["epoch"]: row for row in epoch_rows.to_pylist()}
    schema = arrow_schema(tables.open(epochs.NAME))
    faults = list[Fault]()
    for epoch, manifest in sorted(manifests.items()):
        if epoch <= after:
            continue
        if (row := rows.get(epoch)) is None:
            faults.append(Fault("epoch", epoch, {}, None, "a row in table epochs", None))
            continue
        faults += _faults_of_row(manifest, epoch_row(manifest, schema).to_pylist()[0], row)
        parent = None if manifest.parent is None else manifests.get(manifest.parent)
        if manifest.parent is not None and parent is None:
            continue
        if manifest.line != line_after(parent, epoch):
            faults.append(Fault("manifest", epoch, {}, None, line_after(parent, epoch), manifest.line))
    return len([epoch for epoch in manifests if epoch > after]), unreadable, faults


def _retained(
    tables: PipelineTables, newest: Manifest, after: int
) -> tuple[dict[int, Manifest], list[int], Fault | None]:
    """Return the retained manifests on a lineage from an epoch on, up to one that the log lists as another epoch.

    The second value lists the epochs whose manifests can't be read.
    """
    manifests, unreadable = dict[int, Manifest](), list[int]()
    for entry in list_snapshots(tables):
        if entry.epoch < after:
            break
        if not is_on(newest.line, entry.epoch):
            continue
        snapshot = readable_snapshot(tables, entry.version)
        if snapshot is None:
            unreadable.append(entry.epoch)
            continue
        manifests.setdefault(snapshot.manifest.epoch, snapshot.manifest)
        if snapshot.manifest.epoch != entry.epoch:
            fault = Fault("manifest", entry.epoch, {}, None, entry.epoch, snapshot.manifest.epoch)
            return manifests, unreadable, fault
    return manifests, unreadable, None


def _faults_of_row(manifest: Manifest, made: Mapping[str, Any], row: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield the difference between a row of table epochs and the row that its manifest implies, if there is one."""
    if wrong := [name for name in made if name not in ("stale", "phases") and made[name] != row[name]]:
        kind = "manifest" if "run_id" in wrong else "epoch"
        values = {name: made[name] for name in wrong}, {name: row[name] for name in wrong}
        yield Fault(kind, manifest.epoch, {}, None, *values)
