"""The manifest: what an epoch made, where it stands in the source, and what it still has to publish.

Format version 1, JSON. Within a version fields with a default may be added: a newer tidegate reads what
an older one wrote. An older one refuses a field that it does not know, as it does a newer version, for what goes
on from a manifest without a part of it goes on from something else. Times are int64 epoch milliseconds.
"""

from __future__ import annotations

import json
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, ValidationError, model_serializer

from tidegate.pipelines.errors import Refused
from tidegate.windowing.time import MAX_TIMESTAMP, MIN_TIMESTAMP, Millis

FORMAT_VERSION: Literal[1] = 1

EPOCHS = "epochs"
"""Name of the published table that gets a row from every epoch."""

Kind = Literal["backfill", "stream", "clock", "reopen", "restore", "forget", "prune"]

QUIET: frozenset[Kind] = frozenset({"reopen", "restore", "forget", "prune"})
"""Kinds of epochs that read nothing new: they stand between two others and belong to no interval."""

Line: TypeAlias = tuple[tuple[int, int], ...]
"""The epochs that a snapshot came from, itself included, as ranges `(first, last)` in order."""


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Position(_Value):
    """How far a source has been read.

    `version` is read completely; `frontier` is the event time before which its rows are taken, None
    for all of them. `files` counts the files of the next version, in the log's order, that are read already.
    `table_id` is the Delta id of the table, by which a replaced one is told apart.
    """

    version: int
    frontier: int | None = None
    files: int = 0
    table_id: str | None = None


class Interval(_Value):
    """A span of event time, `[start, end)`."""

    start: int
    end: int


class DataFile(_Value):
    """A file that a task wrote and that is to be committed."""

    path: str
    size: int
    rows: int
    stats: str


class Reopening(_Value):
    """Late rows that an epoch reopened: those found before it that no other had reopened.

    `key` is a hash, None for every key. `start` and `end` bound the beginning of the windows that the rows
    would have gone to. `also` are spans `(hash of the key, start, end)` that were taken in with them: sessions are
    computed whole.
    """

    epoch: int
    key: int | None = None
    start: int | None = None
    end: int | None = None
    also: tuple[tuple[int, int, int], ...] = ()


class Publish(_Value):
    """What one table gets: files to add, and rows that go away or become stale.

    `forget_keys` are hashes, not the keys: those are to be found nowhere any more. `reopened` is of table late.
    `given_up` are files that leave unread, because they can't be read.
    """

    files: tuple[DataFile, ...] = ()
    remove_epochs: tuple[int, ...] = ()
    stale_epochs: tuple[int, ...] = ()
    forget_keys: tuple[int, ...] = ()
    reopened: tuple[Reopening, ...] = ()
    given_up: tuple[str, ...] = ()

    @model_serializer(mode="wrap")
    def _left_out_where_empty(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave `given_up` out where it is empty: a tidegate that does not know it reads all other manifests."""
        fields: dict[str, Any] = serialize(self)
        return fields if self.given_up else {name: value for name, value in fields.items() if name != "given_up"}

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (
            self.files or self.remove_epochs or self.stale_epochs or self.forget_keys or self.reopened or self.given_up
        )


class Shard(_Value):
    """A contiguous range of key groups: what the epoch counted there, and when it next has something to do."""

    first: int
    last: int
    rows: int = 0
    counters: dict[str, int] = {}
    next_event_time_timer: int | None = None
    next_processing_time_timer: int | None = None


class StaleInterval(_Value):
    """An interval whose published rows were computed from snapshots that have been replaced."""

    start: int
    end: int
    epochs: tuple[int, ...]


class Schemas(_Value):
    """What a restore is checked against, one text for each field.

    `result` has the columns that withdrawals repeat, and is empty where none are; `version` is of the state rows.
    """

    key: dict[str, str]
    namespace: str
    contents: dict[str, str]
    trigger_state: dict[str, str] = {}
    user_state: dict[str, str] = {}
    result: dict[str, str] = {}
    version: int = 1


class PartitionWatermark(_Value):
    """Event time of one source partition; `pending` is of a commit that is read in part.

    The pipeline's watermark waits for those that are `aligned`: not idle, and not behind after having been so.
    """

    generator: dict[str, Any] = {}
    watermark: int
    idle: bool = False
    aligned: bool | None = None
    pending: int | None = None
    last_commit: int | None = None

    def is_aligned(self, watermark: Millis) -> bool:
        """Whether it is waited for, where the watermark of its input is this.

        An older manifest does not say it: there a partition that was behind was taken for one that came back.
        """
        if self.aligned is None:
            return not self.idle and self.watermark >= watermark
        return self.aligned


class Manifest(_Value):
    """One snapshot.

    Of two inputs, `inputs` holds the watermark of each side, and names of `partitions` are or begin with it.
    `watermark_by` names the column that the partitions of an input are of, by side (`""` of a single input); an input
    without one is not in it, and older manifests don't have it. Windows whose last millisecond is `closed_through` or
    earlier are closed, whatever lateness later code allows; None where no lateness was ever allowed, and in older
    manifests.
    """

    format_version: Literal[1] = FORMAT_VERSION
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
    run_id: str
    started_at: int
    library_version: str

    @model_serializer(mode="wrap")
    def _without_unset(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what older versions don't know where it says nothing: they refuse a field that they don't know."""
        fields: dict[str, Any] = dump(self)
        if not self.watermark_by:
            fields.pop("watermark_by", None)
        if self.closed_through is None:
            fields.pop("closed_through", None)
        return fields

    @classmethod
    def parse(cls, text: str) -> Manifest:
        """Read a manifest.

        Raises:
            Refused: it has another format version, or is not a manifest.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise Refused(_unreadable(text, error)) from error

    @property
    def watermark_lag(self) -> Millis | None:
        """How far the watermark lies behind the clock, milliseconds; None before there is one, and after the last."""
        known = MIN_TIMESTAMP < self.watermark < MAX_TIMESTAMP
        return self.processing_time - self.watermark if known else None

    def partitions_of(self, side: str) -> dict[str, PartitionWatermark]:
        """The source partitions of an input by their own names.

        Args:
            side: `left` or `right`, or empty where there is one input.
        """
        return {
            name.removeprefix(side).removeprefix(":") if side else name: known
            for name, known in self.partitions.items()
            if not side or name == side or name.startswith(f"{side}:")
        }

    def are_partitioned_by(self, side: str, column: str | None) -> bool:
        """Whether the partitions of an input are those of a column; of None, whether the input has just one.

        An older manifest does not name the column; there only partitions that have a name tell that there is one.
        """
        known = self.watermark_by.get(side)
        if known is not None:
            return known == column
        names = set(self.partitions_of(side))
        if self.watermark_by or column is None:
            return column is None and names <= {""}
        return not names or names != {""}

    def goes_to(self, table: str) -> bool:
        """Whether publishing the epoch is a commit of a table."""
        # The first commit of a timeline goes to every table: it fences drivers of the old one.
        begins = (self.parent or 0) != self.epoch - 1
        return table == EPOCHS or begins or not self.publish[table].is_empty

    def position_in(self, source: str) -> Position:
        """How far a source table was read.

        Raises:
            Refused: the snapshot was taken over another table.
        """
        if source not in self.positions:
            known = ", ".join(map(repr, self.positions))
            raise Refused(
                f"pipeline {self.pipeline!r} reads source {source!r}, and epoch {self.epoch} is a position in {known}, "
                "which says nothing of another table. Give the pipeline another name and backfill it, or take the "
                "change back"
            )
        return self.positions[source]

    def short(self) -> dict[str, object]:
        """The part that DESCRIBE HISTORY shows."""
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
    """The line of an epoch that goes on from a snapshot."""
    before = () if parent is None else parent.line
    if before and before[-1][1] == epoch - 1:
        return (*before[:-1], (before[-1][0], epoch))
    return (*before, (epoch, epoch))


def is_on(line: Line, epoch: int) -> bool:
    """Whether a line passes through an epoch."""
    return any(first <= epoch <= last for first, last in line)


def fork_of(one: Line, other: Line) -> int:
    """The newest epoch that two lines share; 0 where they share none."""
    shared = [
        min(last, other_last)
        for first, last in one
        for other_first, other_last in other
        if max(first, other_first) <= min(last, other_last)
    ]
    return max(shared, default=0)


def _unreadable(text: str, error: ValidationError) -> str:
    """Why a manifest can't be read, and what to do."""
    try:
        raw = json.loads(text)
    except ValueError:
        raw = None
    if not isinstance(raw, dict):
        return "the manifest in table state is no JSON object: only tidegate may change it. Restore a savepoint"
    fault = error.errors()[0]
    place = ".".join(map(str, fault["loc"]))
    found = raw.get("format_version")
    if found != FORMAT_VERSION:
        what = f"has format version {found!r}, and this tidegate reads {FORMAT_VERSION}"
    elif fault["type"] == "extra_forbidden":
        what = f"has a field that this tidegate does not know, {place}: going on would lose it"
    else:
        what = f"can't be read: {fault['msg']} at {place}"
    writer = raw.get("library_version", "of some version")
    return (
        f"the manifest in table state {what}. It was written by tidegate {writer}: install that version or a newer "
        "one, or restore a snapshot from before"
    )
