"""A view of a pipeline's tables: its columns, its rows, and what changes in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from tidegate.pipelines.config import load_config
from tidegate.pipelines.errors import Refused, UsageError
from tidegate.pipelines.reading import changes, views
from tidegate.pipelines.reading.filters import all_of, expression_of, files_that_may_match
from tidegate.pipelines.reading.places import Files
from tidegate.pipelines.reading.reached import (
    NEW_QUERY,
    Reached,
    check_same_history,
    reached,
    rows_of_epochs,
    settled,
)
from tidegate.pipelines.reading.rows import OP, read_file, without_later_marks
from tidegate.pipelines.snapshots.head import require_snapshot
from tidegate.pipelines.snapshots.published import published_epoch, require_published
from tidegate.pipelines.storage import arrow_schema, warehouse_of
from tidegate.pipelines.tables import epochs, late, rejects, results, state
from tidegate.pipelines.tables.pipeline_tables import PipelineTables

FINAL, LATEST, ALL = "final", "latest", "all"

TABLES = {
    **dict.fromkeys((FINAL, LATEST, ALL), results.NAME),
    **{name: name for name in (late.NAME, rejects.NAME, epochs.NAME, state.NAME)},
}
"""Table of each view."""

STREAMED = tuple(view for view in TABLES if view != state.NAME)
"""Views that a stream reads."""

_APPENDED = tuple(view for view in STREAMED if view not in (FINAL, LATEST))
"""Views of which a stream reads each row as its epoch put it out."""


@dataclass(frozen=True)
class Target:
    """A view of a pipeline, and its columns.

    Args:
        tables: the pipeline's tables.
        view: name of the view.
        schema: columns of the view.
        key: names of the key columns.
    """

    tables: PipelineTables
    view: str
    schema: pa.Schema
    key: tuple[str, ...]

    @classmethod
    def of(cls, pipeline: str | None, view: str = FINAL, config: Path | None = None) -> Target:
        """Return a view of a pipeline that tidegate.toml names.

        Args:
            pipeline: name of the pipeline.
            view: name of the view.
            config: path of tidegate.toml; None takes that of TIDEGATE_CONFIG, or the nearest from this folder up.

        Raises:
            UsageError: there is no such pipeline or view. Refused: the pipeline has no tables yet.
        """
        loaded = load_config(config)
        if not pipeline:
            raise UsageError(f"name a pipeline. {loaded.names}")
        if view not in TABLES:
            raise UsageError(f"view {view!r} is unknown: the views are {', '.join(TABLES)}")
        loaded.entry(pipeline)
        tables = PipelineTables(warehouse_of(loaded), pipeline)
        key = tuple(require_snapshot(tables).manifest.schemas.key)
        columns = arrow_schema(tables.look(TABLES[view]))
        # Rows of functions and joins have no `op`, but a stream has to tell which rows left.
        needs_op = view in (FINAL, LATEST) and OP.name not in columns.names
        return cls(tables, view, columns.append(OP) if needs_op else columns, key)

    @property
    def table(self) -> str:
        """Name of the table that has the rows."""
        return TABLES[self.view]

    def rows(self, pushed: Sequence[pc.Expression] = ()) -> views.View:
        """Return the rows of the view as it is now, without files in which no row satisfies all expressions."""
        view, files = self._rows()
        where = all_of([view.where, *pushed])
        names = files_that_may_match(files.active, files.schema, where)
        return replace(view, files=tuple(file for file in view.files if file.name in names))

    def _rows(self) -> tuple[views.View, Files]:
        tables = self.tables
        if self.view == state.NAME:
            snapshot = require_published(tables, require_snapshot(tables))
            files = Files.of(tables.warehouse, snapshot.handle)
            return views.all_rows(files, pc.field("key_group") >= 0), files
        at, files = reached(tables, self.table)
        if self.view in (FINAL, LATEST):
            plan = views.final if self.view == FINAL else views.latest
            return plan(files, self.key, at), files
        return views.all_rows(files, pc.field("epoch") <= at.epoch), files

    def now(self) -> Reached:
        """Return how far the view is published, for a stream."""
        return settled(self.tables, self.table)[0] if published_epoch(self.tables) else Reached.nothing()

    def changes(self, start: Reached, end: Reached, forgotten_through: int = 0) -> views.View:
        """Return what changed in the view between two moments; it is the same whenever it is asked for.

        Args:
            start: the moment up to which a query has read.
            end: the moment up to which it reads.
            forgotten_through: newest `forget` whose keys the query's target has lost as well.

        Raises:
            Refused: the rows in between can't be told any more, or a key was forgotten.
        """
        now, files = settled(self.tables, self.table)
        for at in (start, end):
            check_same_history(self.tables, at, now)
        self._check_forgotten(start, end, forgotten_through)
        is_one_line = end.timeline == now.timeline and start.timeline in (0, end.timeline)
        if self.view in _APPENDED:
            if not is_one_line:
                raise Refused(
                    f"a restore of pipeline {self.tables.pipeline!r}, or an interval that was run again, took away "
                    f"rows of epochs that this query may have read, up to epoch {start.epoch}. A stream of view "
                    f"{self.view!r} only adds rows; view final also takes rows back. {NEW_QUERY}"
                )
            return replace(changes.appended(files, start, end), until=end.epoch)
        only_final = self.view == FINAL
        if is_one_line:
            return changes.changes_in_timeline(files, self.key, start, end, only_final)
        after = files if end == now else self._files_at(end)
        before = self._files_at(start) if start.epoch else after.some(())
        return changes.changes_of_versions(before, after, self.key, start, end, only_final)

    def read(
        self,
        view: views.View,
        pushed: Sequence[pc.Expression] = (),
        columns: list[str] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows of the view.

        Args:
            view: the rows, or a part of their files.
            pushed: expressions that they satisfy as well.
            columns: names of the columns; None for all.
        """
        path = self.tables.path(self.table)
        where = all_of([view.where, *pushed])
        for file in view.files:
            for batch in read_file(self.tables.warehouse, path, file, self.schema, where, columns):
                yield batch if view.until is None else without_later_marks(batch, view.until)

    def table_of(self, columns: Sequence[str] | None, where: str | pc.Expression | None) -> pa.Table:
        """Return the rows of the view as it is now.

        Args:
            columns: names of the columns; None for all.
            where: a condition as text, or an expression, that the rows satisfy; None for all.

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
        number = pc.field("epoch")
        is_new = (number > max(start.epoch, through)) & (number <= end.epoch) & (pc.field("kind") == "forget")
        if numbers := rows_of_epochs(self.tables, "epoch", is_new):
            newest = max(numbers)
            raise Refused(
                f"epoch {newest} of pipeline {self.tables.pipeline!r} forgot a key, so its rows can't be taken back "
                "from the target of this query: nobody may keep them. Erase the key in the target, too, and start the "
                f'query again with .option("forgottenThrough", "{newest}"), which says that you did'
            )

    def _files_at(self, at: Reached) -> Files:
        """Return the files of the table at a moment of another timeline."""
        try:
            handle: DeltaTable = self.tables.open(self.table, at.version)
        except Refused as error:
            raise self._is_gone(at) from error
        files = Files.of(self.tables.warehouse, handle)
        sizes = self.tables.warehouse.sizes(files.path, [file["path"] for file in files.active])
        if any(size is None for size in sizes.values()):
            raise self._is_gone(at)
        return files

    def _is_gone(self, at: Reached) -> Refused:
        return Refused(
            f"pipeline {self.tables.pipeline!r} was restored, or an interval was run again, after epoch {at.epoch}, "
            f"up to which this query has read. To take rows back it needs version {at.version} of table "
            f"{self.tables.path(self.table)}, which was cleaned up (retain_log_hours in tidegate.toml). {NEW_QUERY}"
        )
