"""The manifest of an epoch: its position in the source, its counters, and the files that it publishes.

A manifest is JSON. Its format has a number, see `ledger.migrations`: older formats are converted when they are read,
and newer ones are refused. Times are int64 epoch milliseconds.
"""

from __future__ import annotations

import json
from typing import Any, Literal, TypeAlias

import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, ValidationError

from tidegate.pipelines.definition import epochs
from tidegate.pipelines.definition.recorded import Position, Schemas, Shape
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.migrations import FORMAT, converted
from tidegate.windowing.time import MAX_TIMESTAMP, MIN_TIMESTAMP, Millis, in_range

Kind = Literal["backfill", "stream", "clock", "change", "reopen", "restore", "forget", "prune", "reset"]

QUIET: frozenset[Kind] = frozenset({"reopen", "restore", "forget", "prune", "reset"})
"""Kinds of epochs that read no new rows and belong to no interval."""

_DAMAGED = "Only tidegate may change it: restore a savepoint"

Line: TypeAlias = tuple[tuple[int, int], ...]
"""The lineage of a snapshot: the epochs that led to it, itself included, as ranges `(first, last)` in order."""


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Interval(_Value):
    """A span of event time, `[start, end)`."""

    start: int
    end: int


class DataFile(_Value):
    """A file that a task wrote, to be committed."""

    path: str
    size: int
    rows: int
    stats: str


class Reopening(_Value):
    """The late rows that an epoch reopened: rows of earlier epochs that had not been reopened before.

    `digest` names a key; None means every key. `start` and `end` bound the starts of the windows that the rows belong
    to. `spans` are further spans `(digest of the key, start, end)` whose rows were reopened with them, because a
    session is always recomputed as a whole. `without` are the event times of rows that stay late because they belong to
    no window: the windows have gaps since the assigner changed.
    """

    epoch: int
    start: int | None = None
    end: int | None = None
    digest: str | None = None
    spans: tuple[tuple[str, int, int], ...] = ()
    without: tuple[int, ...] = ()

    @property
    def by_key(self) -> bool:
        """Return True if the key of a row is needed to decide whether it was reopened."""
        return self.digest is not None or bool(self.spans)


class Deletion(_Value):
    """Rows to remove from table late or rejects because they were deleted from the source.

    `file` has these rows with all columns of the table; equal rows are removed from the table. The file stays in the
    table's folder, and a restore to before the epoch brings its rows back. `by_epoch` counts the rows by the epoch that
    added them to the table, and `by_reopening` those that were later added to a window, by the epoch that reopened
    them.
    """

    file: DataFile
    by_epoch: tuple[tuple[int, int], ...]
    by_reopening: tuple[tuple[int, int], ...] = ()


class Publish(_Value):
    """The changes to one table: files to add, and rows that are removed or become stale.

    `forgotten` holds salted digests of keys, because a forgotten key must not be stored anywhere. `reopened` is for
    table `late` only. `deleted` lists rows that were deleted from the source.
    """

    files: tuple[DataFile, ...] = ()
    remove_epochs: tuple[int, ...] = ()
    stale_epochs: tuple[int, ...] = ()
    reopened: tuple[Reopening, ...] = ()
    deleted: tuple[Deletion, ...] = ()
    forgotten: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Return True if the table does not change."""
        return not (self.files or self.rewrites)

    @property
    def rewrites(self) -> bool:
        """Return True if existing rows of the table may change."""
        return bool(self.remove_epochs or self.stale_epochs or self.forgotten or self.reopened or self.deleted)


class Shard(_Value):
    """A contiguous range of key groups, with its counters in the epoch and the times of its next timers."""

    first: int
    last: int
    rows: int = 0
    counters: dict[str, int] = {}
    next_event_time_timer: int | None = None
    next_processing_time_timer: int | None = None


class StaleInterval(_Value):
    """An interval whose published rows were computed from replaced snapshots."""

    start: int
    end: int
    epochs: tuple[int, ...]


class PartitionWatermark(_Value):
    """The event time of one source partition; `pending` is the event time of a partially read commit.

    The pipeline's watermark waits only for `aligned` partitions. An idle partition is not aligned; afterwards it is
    aligned again once it has caught up.
    """

    generator: dict[str, Any] = {}
    watermark: int
    idle: bool = False
    aligned: bool = True
    pending: int | None = None
    last_commit: int | None = None


class RaisedLateness(_Value):
    """A raise of the allowed lateness, while windows that were published before it may still change.

    Their `final_at` was computed with the shorter lateness, so it is up to `by` milliseconds too early.

    Args:
        since: time through which windows were final, by `final_at`, when the lateness was raised.
        by: difference of the two values, milliseconds.
        until: watermark at which no such window accepts elements any more.
    """

    since: Millis
    by: Millis
    until: Millis


class Manifest(_Value):
    """The manifest of one snapshot.

    With two inputs, `inputs` holds the watermark of each side, and the names in `partitions` are the side or begin with
    it. `watermark_by` names, by side (`""` for a single input), the column whose values are the partitions of an input;
    inputs without such a column are left out. Windows whose last millisecond is `closed_through` or earlier stay
    closed, whatever lateness later code allows; it is None without windows of event time. `raised_lateness` is None
    unless windows that were published under a shorter lateness may still change. `ends_by_clock` is True if processing
    time ends the windows. `engine` names the engine of the epoch, or is None if it had none. `slices` is True if the
    state may hold slices of windows. `accumulation` names the relation between the panes of a window, which can't
    change, and `merges` is True if the windows are sessions; both and `shape` are None without windows. `placed_by`
    names the columns or expressions from which the event time and the key of a row are computed, which can't change
    either; it is None without windows of event time. `raised` is True if this epoch or an ancestor rejected rows
    because user code raised an error, and `skipped` if one skipped a version of the source that changed rows.
    `fingerprint` is that of the code which ran over the whole state; `recomputed_by` is that of a correction's code, if
    it differs: a correction changes only the windows that it recomputes.
    """

    format: int = FORMAT
    pipeline: str
    timeline: int
    epoch: int
    parent: int | None
    line: Line
    kind: Kind
    order: Literal["event", "arrival"]
    interval: Interval | None = None
    positions: dict[str, Position]
    watermark: int
    partitions: dict[str, PartitionWatermark] = {}
    inputs: dict[str, int] = {}
    watermark_by: dict[str, str] = {}
    processing_time: int
    stagger_offset: int | None = None
    max_parallelism: int
    shards: tuple[Shard, ...]
    fingerprint: str
    schemas: Schemas
    counters: dict[str, int]
    stale: tuple[StaleInterval, ...] = ()
    publish: dict[str, Publish]
    phases: dict[str, float] = {}
    closed_through: int | None = None
    raised_lateness: RaisedLateness | None = None
    shape: Shape | None = None
    ends_by_clock: bool = False
    run_id: str
    started_at: int
    library_version: str
    engine: str | None = None
    slices: bool = False
    accumulation: str | None = None
    merges: bool | None = None
    placed_by: dict[str, str] | None = None
    raised: bool = False
    skipped: bool = False
    recomputed_by: str | None = None

    @classmethod
    def parse(cls, text: str) -> Manifest:
        """Read a manifest of any format; raise Refused if its format is not known, or it is not a manifest."""
        try:
            fields = json.loads(text)
        except ValueError:
            fields = None
        if not isinstance(fields, dict):
            raise Refused(f"the manifest in table state is not a JSON object: {_DAMAGED}")
        try:
            return cls.model_validate(converted(fields))
        except ValidationError as error:
            fault = error.errors()[0]
            place = ".".join(map(str, fault["loc"]))
            raise Refused(
                f"the manifest in table state can't be read: {fault['msg']} at {place}. {_DAMAGED}"
            ) from error

    @property
    def driven_by(self) -> str:
        """Return which commands continue the snapshot: `backfill` by intervals, or `stream` by commits."""
        return "backfill" if any(each.frontier is not None for each in self.positions.values()) else "stream"

    @property
    def outside_range(self) -> str | None:
        """Description of a time that no table can hold, such as `watermark -86398290619200001`; None if there is none.

        Code checks each time before a commit, so only a faulty version of tidegate commits such a time.
        """
        times = {"watermark": self.watermark, "processing_time": self.processing_time}
        no_time = (MIN_TIMESTAMP, MAX_TIMESTAMP)
        wrong = (f"{name} {time}" for name, time in times.items() if not in_range(time) and time not in no_time)
        return next(wrong, None)

    @property
    def unrepeatable(self) -> str | None:
        """What the pipeline did, so that its windows can't be computed again from the source, as a phrase, or None."""
        if self.raised:
            return "rejected rows for which its code raised an error (on_error = 'reject')"
        if self.skipped:
            return "skipped a version of its source that changed rows (changes = 'ignore')"
        return None

    @property
    def ended_through(self) -> Millis:
        """Time up to which windows have ended, int64 epoch milliseconds.

        It is the watermark, or, for windows that the clock ends, the last millisecond that the clock has reached.
        """
        return self.processing_time - 1 if self.ends_by_clock else self.watermark

    @property
    def final_through(self) -> Millis:
        """Time up to which windows are final, by `final_at`, int64 epoch milliseconds.

        It is `ended_through`, except after a raise of the allowed lateness: then it stays behind the watermark until
        the windows from before the raise have closed.
        """
        raised = self.raised_lateness
        if raised is None or self.watermark >= raised.until:
            return self.ended_through
        return max(raised.since, self.watermark - raised.by)

    @property
    def watermark_lag(self) -> Millis | None:
        """Return how far the watermark is behind the clock, milliseconds; None at the beginning and end of time."""
        is_moment = MIN_TIMESTAMP < self.watermark < MAX_TIMESTAMP
        return self.processing_time - self.watermark if is_moment else None

    def partitions_of(self, side: str) -> dict[str, PartitionWatermark]:
        """Return the source partitions of an input by name, without the side. The side is empty for a single input."""
        return {
            name.removeprefix(side).removeprefix(":") if side else name: partition
            for name, partition in self.partitions.items()
            if not side or name == side or name.startswith(f"{side}:")
        }

    def are_partitioned_by(self, side: str, column: str | None) -> bool:
        """Return True if the partitions of an input are the values of a column; None means a single partition."""
        return self.watermark_by.get(side) == column

    def goes_to(self, table: str) -> bool:
        """Return True if publishing the epoch commits to a table."""
        # The first commit of a timeline goes to every table, to fence drivers of the old one.
        begins = (self.parent or 0) != self.epoch - 1
        return table == epochs.NAME or begins or not self.publish[table].is_empty

    def position_in(self, source: str) -> Position:
        """Return the position in a source table. A snapshot of another source is refused."""
        if source not in self.positions:
            sources = ", ".join(map(repr, self.positions))
            raise Refused(
                f"pipeline {self.pipeline!r} reads source {source!r}, but the snapshot of epoch {self.epoch} has a "
                f"position in {sources} only. Give the pipeline another name and backfill it, or undo the change"
            )
        return self.positions[source]

    def short(self) -> dict[str, object]:
        """Return the fields that DESCRIBE HISTORY shows."""
        return {
            "pipeline": self.pipeline,
            "timeline": self.timeline,
            "epoch": self.epoch,
            "parent": self.parent,
            "kind": self.kind,
            "interval": self.interval.model_dump() if self.interval else None,
            "watermark": self.watermark,
            "fingerprint": self.fingerprint,
            "run_id": self.run_id,
        }


def line_after(parent: Manifest | None, epoch: int) -> Line:
    """Return the lineage of an epoch that continues from a snapshot."""
    return line_with(() if parent is None else parent.line, epoch)


def line_with(before: Line, epoch: int) -> Line:
    """Return a lineage with one more epoch, which extends the last range if it follows that range."""
    if before and before[-1][1] == epoch - 1:
        return (*before[:-1], (before[-1][0], epoch))
    return (*before, (epoch, epoch))


def is_on(line: Line, epoch: int) -> bool:
    """Return True if an epoch is on a lineage."""
    return any(first <= epoch <= last for first, last in line)


def of_line(line: Line) -> pc.Expression:
    """Return the filter for rows of a published table that are not stale and that epochs on a lineage added."""
    epoch, is_on_line = pc.field("epoch"), pc.scalar(False)
    for first, last in line:
        is_on_line |= (epoch >= first) & (epoch <= last)
    return ~pc.field("stale") & is_on_line


def fork_of(line: Line, other: Line) -> int:
    """Return the newest epoch that two lineages share, or 0 if they share none."""
    shared = [
        min(last, other_last)
        for first, last in line
        for other_first, other_last in other
        if max(first, other_first) <= min(last, other_last)
    ]
    return max(shared, default=0)
