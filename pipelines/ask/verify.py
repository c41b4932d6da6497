"""Verification: windows are recomputed from the source, and the tables are compared with each other.

Windows of sampled keys are recomputed by a plain implementation of the rules (`ask.lives`), which shares no code with
the operators. No published row is changed, and no JVM starts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from time import process_time
from typing import ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.ask.faults import (
    Draw,
    Fault,
    WindowFaults,
    faults_of_epochs,
    faults_of_late_rows,
    faults_of_manifests,
    faults_of_windows,
)
from tidegate.pipelines.ask.history import read_history
from tidegate.pipelines.definition import epochs, late, results
from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.definition.event_columns import FIRST_TIME
from tidegate.pipelines.definition.names import count_of
from tidegate.pipelines.errors import QualityFailed, Refused
from tidegate.pipelines.ledger.manifest import Manifest, is_on, of_line
from tidegate.pipelines.ledger.snapshots.head import Snapshot, list_snapshots, read_snapshot
from tidegate.pipelines.ledger.snapshots.published import require_settled
from tidegate.pipelines.ledger.tables import quality
from tidegate.pipelines.ledger.tables.damaged_footers import check_footers
from tidegate.pipelines.ledger.tables.keys import named_key
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.observe.report.answer import Facts
from tidegate.pipelines.observe.report.columns import (
    COUNT,
    INSTANT,
    NUMBER,
    OBJECT,
    SECONDS,
    SHARE,
    TEXT,
    YES_NO,
    Column,
    Columns,
    Table,
)
from tidegate.pipelines.observe.report.values import cells_apart
from tidegate.pipelines.remedy import Act, Remedy
from tidegate.pipelines.rendering import spelled
from tidegate.pipelines.storage.warehouse import read_table
from tidegate.windowing.time import from_millis, show_millis
from tidegate.windowing.timestamps import epoch_millis

_MOST_SHOWN = 20

_MOST_EPOCHS = 200
"""Number of newest epochs from which one is sampled."""

_READS = frozenset({"stream", "clock"})
"""Kinds of epochs that leave rows of earlier epochs unchanged."""


@dataclass(frozen=True, slots=True)
class Verified(Facts):
    """The outcome of a verification.

    Args:
        epoch: its newest epoch.
        sample: share of the keys whose windows were recomputed, 0 to 1.
        seed: seed of the sample.
        keys: number of sampled keys.
        windows: number of windows that were recomputed.
        unverifiable: number of windows of sampled keys that can't be recomputed.
        why_unverifiable: the reasons; None if there are none.
        after: only what later epochs published was verified; None for everything.
        due_in: if nothing was verified because the budget does not allow it yet, the seconds that epochs must run
            until then; otherwise None.
        late_rows: number of late rows that were checked.
        epochs: number of epochs that were checked.
        manifests: number of retained manifests that were checked.
        unreadable_manifests: epochs of retained snapshots whose manifests can't be read any more.
        faults: the differences.
    """

    pipeline: str
    epoch: int
    sample: float
    seed: int
    keys: int
    windows: int
    unverifiable: int
    why_unverifiable: str | None
    late_rows: int
    epochs: int
    manifests: int
    unreadable_manifests: tuple[int, ...]
    faults: tuple[Fault, ...]
    after: int | None = None
    due_in: float | None = None

    facts: ClassVar[Columns] = (
        Column("pipeline", TEXT),
        Column("epoch", NUMBER),
        Column("sample", SHARE),
        Column("seed", NUMBER),
        Column("keys", COUNT),
        Column("windows", COUNT),
        Column("unverifiable", COUNT),
        Column("why_unverifiable", TEXT),
        Column("late_rows", COUNT),
        Column("epochs", COUNT),
        Column("manifests", COUNT),
        Column("unreadable_manifests", OBJECT),
        Column("after", NUMBER),
        Column("due_in", SECONDS),
        Column("success", YES_NO),
    )
    holds: ClassVar[Mapping[str, Columns]] = {
        "faults": (
            Column("kind", TEXT, "what"),
            Column("epoch", NUMBER),
            Column("key", OBJECT, text=lambda fault: named_key(fault.key)),
            Column("start", INSTANT, "window", text=lambda fault: show_millis(fault.start)),
            Column("expected", OBJECT, text=lambda fault: cells_apart(fault.expected, fault.found)[0]),
            Column("found", OBJECT, text=lambda fault: cells_apart(fault.expected, fault.found)[1]),
        )
    }

    @property
    def success(self) -> bool:
        """True if there is no difference."""
        return not self.faults

    def require(self) -> Self:
        """Return this outcome, provided that there is no difference.

        Raises:
            QualityFailed: something differs.
        """
        if self.success:
            return self
        kinds = ", ".join(sorted({fault.kind for fault in self.faults}))
        raise QualityFailed(f"{self.pipeline}, epoch {self.epoch}: {count_of(len(self.faults), 'difference')}: {kinds}")

    def tables(self) -> Iterator[Table]:
        title = f"differences ({min(len(self.faults), _MOST_SHOWN)} of {len(self.faults)})"
        yield Table("faults", self.holds["faults"], self.faults, title, _MOST_SHOWN, is_shown=bool(self.faults))

    def lines(self) -> Iterator[str]:
        if self.due_in is not None:
            yield f"{self.pipeline}: nothing verified yet: due after {self.due_in:.1f} more seconds of epochs"
            return
        since = "" if self.after is None else f" since epoch {self.after}"
        yield (
            f"{self.pipeline}, epoch {self.epoch}{since}: {self.windows} windows of {self.keys} sampled keys "
            f"recomputed, {self.late_rows} late rows, {self.epochs} epochs and {self.manifests} manifests checked: "
            f"{len(self.faults) or 'no'} difference{'(s)' if self.faults else ''}"
        )
        if self.unverifiable:
            yield f"{self.unverifiable} results of sampled keys are unverifiable: {self.why_unverifiable}"
        if self.unreadable_manifests:
            yield (
                f"the manifests of {count_of(len(self.unreadable_manifests), 'epoch')} can't be read any more and were "
                f"not checked: {', '.join(map(str, self.unreadable_manifests))}"
            )

    def remarks(self) -> Iterator[str]:
        if of_windows := [fault for fault in self.faults if fault.kind in ("value", "missing", "unexpected")]:
            trace = Remedy(Act.TRACE_WINDOW, self.pipeline, key=None if of_windows[0].key else ())
            yield f"{spelled(trace)} shows how a window was computed"
        if self.sample < 1 and self.due_in is None:
            yield (
                f"each key was sampled with probability {self.sample:g} (seed {self.seed}): wrong windows of k keys "
                f"are found with probability 1 - (1 - {self.sample:g})^k; --sample all finds them all"
            )


def verify(
    config: Config, pipeline: str, share: float, seed: int | None, new: bool, budget: float | None = None
) -> Verified:
    """Verify the tables of a pipeline as of its newest published epoch, or of a sampled epoch.

    With `new`, the verification is recorded in table `quality`. With a budget, the processor
    time of the last such verification decides whether one is due.
    """
    began = process_time()
    tables = PipelineTables.of(config, pipeline)
    if not new and budget is None:
        check_footers(tables)
    snapshot = newest = require_settled(tables)
    manifest = newest.manifest
    seed = manifest.epoch if seed is None else seed
    if budget is not None:
        last = quality.last_sampled(tables)
        if (due_in := _due_in(tables, manifest, budget, last)) > 0:
            return Verified(pipeline, manifest.epoch, share, seed, 0, 0, 0, None, 0, 0, 0, (), (), due_in=due_in)
        snapshot, since = _sampled_epoch(tables, newest, 0 if last is None else last[0], seed)
        manifest = snapshot.manifest
    else:
        since = _since(tables, manifest) if new else None
    after = 0 if since is None else since.epoch
    if new or budget is not None:
        check_footers(tables, None if since is None else since.epoch)
    of_tables = _Checked.of(tables, manifest, after)
    found = _found(config, snapshot, tables, share, seed, since)
    outcome = Verified(
        pipeline,
        manifest.epoch,
        share,
        seed,
        found.keys,
        found.windows,
        found.unverifiable.total(),
        "; ".join(found.unverifiable) or None,
        of_tables.late_rows,
        of_tables.epochs,
        of_tables.manifests,
        of_tables.unreadable_manifests,
        (*of_tables.faults, *found.faults),
        None if since is None else since.epoch,
    )
    if new or budget is not None:
        seconds = None if budget is None else process_time() - began
        told = next(outcome.lines())
        quality.keep_verification(tables, newest.manifest, outcome.success, told, outcome.windows, seconds)
    return outcome


@dataclass(frozen=True, slots=True)
class _Checked:
    """What was checked besides windows: the numbers of late rows, epochs and manifests, and the faults."""

    late_rows: int
    epochs: int
    manifests: int
    unreadable_manifests: tuple[int, ...]
    faults: tuple[Fault, ...]

    @classmethod
    def of(cls, tables: PipelineTables, manifest: Manifest, after: int) -> _Checked:
        """Check what later epochs than `after` wrote."""
        all_epochs = read_table(tables.warehouse, tables.open(epochs.NAME))
        epoch_rows = all_epochs.filter(of_line(manifest.line))
        # A restore brings back no erased row, so abandoned epochs count too.
        erasing = pc.is_in(all_epochs["kind"], pa.array(["prune", "forget"]))
        erased = bool(pc.any(pc.and_(erasing, pc.greater(all_epochs["epoch"], after))).as_py())
        is_new = results.current(manifest.epoch) & (pc.field("epoch") > after)
        late_rows = read_table(tables.warehouse, tables.open(late.NAME), where=is_new)
        new_epochs = epoch_rows.filter(pc.greater(epoch_rows["epoch"], after))
        faults = [*faults_of_late_rows(late_rows, epoch_rows), *faults_of_epochs(new_epochs, late_rows, erased)]
        manifests, unreadable, chain = faults_of_manifests(tables, manifest, epoch_rows, after)
        return cls(len(late_rows), len(new_epochs), manifests, tuple(sorted(unreadable)), (*faults, *chain))


def _found(
    config: Config, snapshot: Snapshot, tables: PipelineTables, share: float, seed: int, since: Manifest | None
) -> WindowFaults:
    """Compute the windows of sampled keys again. A pipeline without a history has only windows that can't be."""
    try:
        found = _windows(config, snapshot, tables, share, seed, since)
        if since is not None and (found.faults or found.unverifiable):
            # Rows from before that epoch were read only in part, so the whole history is used.
            found = _windows(config, snapshot, tables, share, seed, None)
        return found
    except Refused as error:
        windows, _ = _drawn(tables, snapshot.manifest, share, seed, 0)
        return WindowFaults(unverifiable=Counter({str(error): len(windows)}))


def _due_in(tables: PipelineTables, manifest: Manifest, budget: float, last: tuple[int, float] | None) -> float:
    """Return how many more seconds of epochs must run before the budget allows a verification; 0 if none.

    `last` is the epoch as of which the last verification ran, and its processor time, seconds; None if there was none.
    """
    if last is None:
        return 0.0
    epoch, seconds = last
    where = of_line(manifest.line) & (pc.field("epoch") > epoch)
    phases = read_table(tables.warehouse, tables.open(epochs.NAME), ["phases"], where)["phases"].to_pylist()
    passed = [max([0.0, *dict(each).values()]) for each in phases]
    return max(0.0, seconds / budget - float(sum(passed)))


def _sampled_epoch(tables: PipelineTables, newest: Snapshot, after: int, seed: int) -> tuple[Snapshot, Manifest | None]:
    """Return the snapshot of one of the newest epochs after an epoch, and the manifest of the one before it.

    Only the newest epochs that did not change rows of earlier epochs are sampled, each with equal probability.
    """
    line, kind = newest.manifest.line, newest.manifest.kind
    of_epoch: dict[int, int] = {}
    for entry in list_snapshots(tables, _MOST_EPOCHS):
        if entry.epoch in of_epoch or not is_on(line, entry.epoch):
            continue
        of_epoch[entry.epoch] = entry.version
        if len(of_epoch) > 1 and (entry.epoch <= after or kind not in _READS):
            break
        kind = entry.manifest["kind"]
    if len(of_epoch) < 2:
        return newest, None
    numbers = [*of_epoch]
    drawn = int(np.random.default_rng(seed).integers(len(numbers) - 1))
    snapshot = read_snapshot(tables, of_epoch[numbers[drawn]])
    if snapshot is None:
        drawn, snapshot = 0, newest
    before = read_snapshot(tables, of_epoch[numbers[drawn + 1]])
    return snapshot, None if before is None else before.manifest


def _since(tables: PipelineTables, manifest: Manifest) -> Manifest | None:
    """Return the manifest of the epoch that was verified last, unless it is not retained or a restore abandoned it."""
    verified = quality.verified_epochs(tables)
    for entry in list_snapshots(tables):
        if entry.epoch in verified and is_on(manifest.line, entry.epoch):
            snapshot = read_snapshot(tables, entry.version)
            return None if snapshot is None else snapshot.manifest
    return None


def _windows(
    config: Config, snapshot: Snapshot, tables: PipelineTables, share: float, seed: int, since: Manifest | None
) -> WindowFaults:
    """Compare the windows of sampled keys with their recomputed lives: all, or those with a pane since an epoch."""
    manifest = snapshot.manifest
    windows, draw = _drawn(tables, manifest, share, seed, 0 if since is None else since.epoch)
    lower, where = FIRST_TIME, results.current(manifest.epoch)
    if since is not None:
        starts, ends = (np.asarray(epoch_millis(windows[name])) for name in ("window_start", "window_end"))
        shape = manifest.shape
        longest = max([0, *(ends - starts).tolist(), *filter(None, (shape and shape.size, shape and shape.gap))])
        lower = max(FIRST_TIME, min([since.watermark - longest, *starts.tolist()]))
        ends_later = (pc.field("window_end") >= from_millis(lower)) | pc.field("window_end").is_null()
        where &= (pc.field("epoch") > since.epoch) | (pc.field(late.REOPENED) > since.epoch) | ends_later
    late_rows = read_table(tables.warehouse, tables.open(late.NAME), where=where)
    history = read_history(config, manifest.pipeline, since, lower, manifest)
    return faults_of_windows(history, snapshot, {results.NAME: windows, late.NAME: late_rows}, draw)


def _drawn(tables: PipelineTables, manifest: Manifest, share: float, seed: int, after: int) -> tuple[pa.Table, Draw]:
    """Return the current windows of sampled keys, those with a pane after an epoch, and the sample."""
    key = tuple(manifest.schemas.key)
    where = results.current(manifest.epoch) & (pc.field("epoch") > after)
    rows = read_table(tables.warehouse, tables.open(results.NAME), where=where)
    draw = Draw.of(rows, key, share, seed)
    return results.latest(rows.filter(pa.array(draw.flags(rows))), key), draw
