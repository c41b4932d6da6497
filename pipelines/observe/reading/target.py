"""A view of a pipeline's tables: its columns, its rows and their changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from tidegate.pipelines.definition import epochs, late, rejects, results, state, windows
from tidegate.pipelines.definition.config import load_config
from tidegate.pipelines.definition.config.opened import warehouse_of
from tidegate.pipelines.definition.late import REOPENED
from tidegate.pipelines.errors import Refused, UsageError
from tidegate.pipelines.ledger.snapshots.head import require_snapshot
from tidegate.pipelines.ledger.snapshots.published import published_epoch, require_published
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.observe.reading import views
from tidegate.pipelines.observe.reading.filters import all_of, expression_of, files_that_may_match
from tidegate.pipelines.observe.reading.places import Files
from tidegate.pipelines.observe.reading.reached import (
    NEW_QUERY,
    Reached,
    check_same_history,
    given_up_since,
    oldest_epoch,
    reached,
    rows_of_epochs,
    settled,
)
from tidegate.pipelines.observe.reading.views import OP, has_op, read_file, with_op, without_later_marks
from tidegate.pipelines.storage.warehouse import stored_schema

FINAL, LATEST, ALL = "final", "latest", "all"

TABLES = {
    **dict.fromkeys((FINAL, LATEST, ALL), results.NAME),
    **{name: name for name in (windows.NAME, late.NAME, rejects.NAME, epochs.NAME, state.NAME)},
}
"""Table of each view."""

STREAMED = tuple(view for view in TABLES if view not in (windows.NAME, state.NAME))
"""Views that a stream reads."""

_APPENDED = tuple(view for view in STREAMED if view not in (FINAL, LATEST))
"""Views whose rows a stream reads as they were emitted."""


@dataclass(frozen=True)
class Target:
    """A view of a pipeline, with its columns."""

    tables: PipelineTables
    view: str
    schema: pa.Schema
    key: tuple[str, ...]

    @classmethod
    def of(cls, pipeline: str | None, view: str = FINAL, config: Path | None = None) -> Target:
        """Return a view of a pipeline in a tidegate.toml: that of TIDEGATE_CONFIG or the nearest one, without a path.

        Raises:
            UsageError: there is no such pipeline or view.
            Refused: the pipeline has no tables yet.
        """
        loaded = load_config(config)
        if not pipeline:
            raise UsageError(f"name a pipeline. {loaded.names}")
        if view not in TABLES:
            raise UsageError(f"view {view!r} is unknown: the views are {', '.join(TABLES)}")
        loaded.entry(pipeline)
        tables = PipelineTables(warehouse_of(loaded), pipeline)
        key = tuple(require_snapshot(tables).manifest.schemas.key)
        handle = tables.newest_windows() if view == windows.NAME else tables.newest(TABLES[view])
        # Files don't have the partition column of table windows.
        columns = stored_schema(handle)
        if view == state.NAME:
            columns = state.without_deltas(columns)
        # Rows of functions and joins have no `op`, but a stream must show which rows were removed.
        needs_op = view in (FINAL, LATEST) and not has_op(columns)
        return cls(tables, view, columns.append(OP) if needs_op else columns, key)

    @property
    def table(self) -> str:
        """Name of the table that has the rows."""
        return TABLES[self.view]

    @property
    def changing(self) -> frozenset[str]:
        """Names of columns whose values a stream sets itself."""
        marks = {REOPENED} if self.table == late.NAME else set()
        signs = {OP.name} if self.table == results.NAME and not self._has_own_op else set()
        return frozenset({"stale", *marks, *signs})

    @property
    def _has_own_op(self) -> bool:
        """True if `op` is a result of a function or a key, not the sign of a row."""
        schema = self.schema
        if not has_op(schema) or results.has_panes(schema):
            return False
        return OP.name not in schema.names or not schema.field(OP.name).equals(OP, check_metadata=True)

    def check_can_be_followed(self) -> None:
        """Check that a stream can read the view.

        Raises:
            UsageError: a stream can't read it; the message says what to do.
        """
        if self.view not in STREAMED:
            raise UsageError(
                f"option view = {self.view!r}: a stream reads {', '.join(STREAMED)}. View `final` has each window once "
                "it is final, and its corrections"
            )
        if self.view in (FINAL, LATEST) and self._has_own_op:
            raise UsageError(
                f"the results of pipeline {self.tables.pipeline!r} have a column 'op', which a stream of view "
                f"{self.view!r} needs for + and -: rename the column in the pipeline, or stream view {ALL!r}, which "
                "only adds rows"
            )

    def rows(self, pushed: Sequence[pc.Expression] = ()) -> views.View:
        """Return the current rows of the view, without files in which no row satisfies all expressions."""
        view, files = self._rows()
        where = all_of([view.where, *pushed])
        names = files_that_may_match(files.active, self.schema, where)
        return replace(view, files=tuple(file for file in view.files if file.name in names))

    def _rows(self) -> tuple[views.View, Files]:
        tables = self.tables
        if self.view == state.NAME:
            snapshot = require_published(tables, require_snapshot(tables))
            files = Files.of(tables.warehouse, snapshot.handle)
            return views.held_state(files), files
        if self.view == windows.NAME:
            files = Files.of(tables.warehouse, tables.newest_windows())
            return views.all_rows(files, None), files
        at, files = reached(tables, self.table)
        if self.view in (FINAL, LATEST):
            plan = views.final if self.view == FINAL else views.latest
            return with_op(plan(files, self.key, at), files), files
        return views.all_rows(files, pc.field("epoch") <= at.epoch), files

    def now(self) -> Reached:
        """Return how far the view is published, for a stream."""
        return settled(self.tables, self.table)[0] if published_epoch(self.tables) else Reached.nothing()

    def changes(self, start: Reached, end: Reached, forgotten_through: int = 0) -> views.View:
        """Return what changed in the view between two offsets. Repeated calls return the same rows.

        Keys of each `forget` up to an epoch (`forgotten_through`) were also erased in the query's target.

        Raises:
            Refused: the rows in between can no longer be determined, or a key was forgotten.
        """
        now, files = settled(self.tables, self.table)
        for at in (start, end):
            check_same_history(self.tables, at, now)
        self._check_forgotten(start, end, forgotten_through)
        is_one_line = end.timeline == now.timeline and start.timeline in (0, end.timeline)
        if self.view in _APPENDED:
            if not is_one_line:
                raise Refused(
                    f"a restore of pipeline {self.tables.pipeline!r}, or an interval that was rerun, removed rows "
                    f"of epochs that this query may have read, up to epoch {start.epoch}. A stream of view "
                    f"{self.view!r} only adds rows; view final also retracts rows. {NEW_QUERY}"
                )
            # Only late rows have these marks. In other tables, a column of that name means something else.
            until = end.epoch if self.table == late.NAME else None
            return replace(views.appended(files, start, end), until=until)
        only_final = self.view == FINAL
        if is_one_line:
            return with_op(views.changes_in_timeline(files, self.key, start, end, only_final), files)
        after = files if end == now else self._files_at(end)
        before = self._files_at(start) if start.epoch else after.some(())
        return views.changes_of_versions(before, after, self.key, start, end, only_final)

    def read(
        self,
        view: views.View,
        pushed: Sequence[pc.Expression] = (),
        columns: list[str] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows of the view, or of some of its files, that also satisfy the expressions in `pushed`.

        If no columns are named, all are returned.
        """
        path = self.tables.path(self.table)
        where = all_of([view.where, *pushed])
        for file in view.files:
            for batch in read_file(self.tables.warehouse, path, file, self.schema, where, columns):
                yield batch if view.until is None else without_later_marks(batch, view.until)

    def table_of(self, columns: Sequence[str] | None, where: str | pc.Expression | None) -> pa.Table:
        """Return the current rows of the view that satisfy a condition; None for all rows, or all columns.

        Raises:
            UsageError: the view has no such column, or the condition does not fit its columns.
        """
        if isinstance(columns, str):
            raise UsageError(f"columns = {columns!r}: give a list, such as [{columns!r}]")
        names = self.schema.names if columns is None else list(columns)
        if unknown := sorted(set(names) - set(self.schema.names)):
            raise UsageError(
                f"view {self.view!r} of pipeline {self.tables.pipeline!r} has no column {unknown[0]!r}: it has "
                f"{', '.join(self.schema.names)}"
            )
        pushed = [] if where is None else [expression_of(where, self.schema)]
        batches = self.read(self.rows(pushed), pushed, names)
        schema = pa.schema([self.schema.field(name) for name in names])
        return pa.Table.from_batches((batch.cast(schema) for batch in batches), schema)

    def _check_forgotten(self, start: Reached, end: Reached, through: int) -> None:
        if not start.epoch:
            return
        number, since = pc.field("epoch"), max(start.epoch, through)
        self._check_epochs_known(start, since)
        is_new = (number > since) & (number <= end.epoch) & (pc.field("kind") == "forget")
        if numbers := rows_of_epochs(self.tables, "epoch", is_new):
            newest = max(numbers)
            raise Refused(
                f"epoch {newest} of pipeline {self.tables.pipeline!r} forgot a key, so this query can't retract its "
                f"rows from its target: they are stored nowhere. Erase the key in the target as well, and confirm "
                f"that by "
                f'starting the query again with .option("forgottenThrough", "{newest}")'
            )

    def _check_epochs_known(self, start: Reached, since: int) -> None:
        """Refuse if table epochs has lost rows of epochs that followed in the timeline of an offset.

        A cleanup removes them after a long time, oldest first. The rows that an epoch of another timeline removed are
        known from versions of the table, which are cleaned up much earlier, and which `forget` removes immediately.
        """
        oldest = oldest_epoch(self.tables)
        if oldest > since + 1 and rows_of_epochs(self.tables, "epoch", pc.field("timeline") == start.timeline):
            raise Refused(
                f"this query has read epoch {start.epoch} of pipeline {self.tables.pipeline!r}, but table epochs only "
                f"has epochs from {oldest} on (retain_epochs_days in tidegate.toml), so it is unknown whether a key "
                f"was forgotten in between. {NEW_QUERY}"
            )

    def _files_at(self, at: Reached) -> Files:
        """Return the files of the table at an offset of another timeline."""
        try:
            handle: DeltaTable = self.tables.open(self.table, at.version)
        except Refused as error:
            raise self._is_gone(at) from error
        files = Files.of(self.tables.warehouse, handle)
        if lost := given_up_since(self.tables, self.table, at.epoch) & {file["path"] for file in files.active}:
            raise Refused(
                f"`tidegate restore --give-up-results` gave up rows of pipeline {self.tables.pipeline!r} that this "
                f"query has read (file {min(lost)}), so they can't be retracted from its target. {NEW_QUERY}"
            )
        sizes = self.tables.warehouse.sizes(files.path, [file["path"] for file in files.active])
        if any(size is None for size in sizes.values()):
            raise self._is_gone(at)
        return files

    def _is_gone(self, at: Reached) -> Refused:
        return Refused(
            f"pipeline {self.tables.pipeline!r} was restored, or an interval was rerun, after epoch {at.epoch}, up to "
            f"which this query has read. To retract rows it needs version {at.version} of table "
            f"{self.tables.path(self.table)}, which was cleaned up (retain_log_hours in tidegate.toml). {NEW_QUERY}"
        )
