"""The name spaces of a project: what can be done with its snapshots, savepoints, late rows, checks, tables and drivers.

Each method imports what it needs when it is called, so creating a project loads no table libraries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal

from tidegate.extras import require
from tidegate.pipelines.definition.config import Config, PartitionUnit
from tidegate.pipelines.project.given import Bound, Count, KeyGiven, Moment, Number, Seconds, key_text, millis_of
from tidegate.pipelines.project.progress import Teller

if TYPE_CHECKING:
    from tidegate.expectations.check import Acknowledged, Quality
    from tidegate.pipelines.project.clean import Optimized, Vacuumed, WindowsBuilt
    from tidegate.pipelines.project.driver import Alive, StoppedDriver, Unlocked
    from tidegate.pipelines.project.late import LateSummary, Pruned, Reopened
    from tidegate.pipelines.project.lineage import Lineage
    from tidegate.pipelines.project.results import Query
    from tidegate.pipelines.project.savepoints import Savepoint, SavepointDeleted, Savepoints
    from tidegate.pipelines.project.snapshots import SnapshotCheck, SnapshotContent, SnapshotDiff, Snapshots
    from tidegate.pipelines.project.source import SourceReset


class Namespace:
    """Methods of a project about one thing.

    Args:
        config: the settings of the project.
        teller_of: returns what reports the progress of a pipeline.
    """

    __slots__ = ("_config", "_teller_of")

    def __init__(self, config: Config, teller_of: Callable[[str], Teller]) -> None:
        self._config, self._teller_of = config, teller_of


class SnapshotMethods(Namespace):
    """List, inspect, compare and check snapshots.

    A snapshot is named by its epoch's number, `latest`, or `savepoint:NAME`.
    """

    def list(self, pipeline: str) -> Snapshots:
        """Return the snapshots of a pipeline, newest first.

        Those that are marked "yes" under "restorable" can be restored. A snapshot of an abandoned lineage can't be
        restored once snapshots between it and the fork were removed, because they list its results.
        """
        from tidegate.pipelines.project.snapshots import snapshot_list

        return snapshot_list(self._config, pipeline)

    def show(
        self,
        pipeline: str,
        target: str | int = "latest",
        *,
        rows: Number = 20,
        key_group: Number | None = None,
        checksums: bool = False,
    ) -> SnapshotContent:
        """Return a snapshot: its manifest, its windows with their timers, and counts by key group.

        Args:
            pipeline: name of the pipeline.
            target: `latest`, an epoch, or `savepoint:NAME`.
            rows: largest number of windows.
            key_group: only windows of this key group.
            checksums: True to add a checksum of each key group: equal rows have equal checksums.
        """
        from tidegate.pipelines.project.snapshots import snapshot_show

        return snapshot_show(self._config, pipeline, str(target), rows, key_group, checksums)

    def diff(
        self, pipeline: str, first: str | int, second: str | int = "latest", *, rows: Number | None = 20
    ) -> SnapshotDiff:
        """Return the windows and timers that were added, removed or changed from one snapshot to another.

        Args:
            pipeline: name of the pipeline.
            first: `latest`, an epoch, or `savepoint:NAME`.
            second: the snapshot that it is compared with, named likewise.
            rows: largest number of windows and timers of each kind; None for all.
        """
        from tidegate.pipelines.project.snapshots import snapshot_diff

        return snapshot_diff(self._config, pipeline, str(first), str(second), rows)

    def check(self, pipeline: str, target: str | int = "latest") -> SnapshotCheck:
        """Check that the current code can continue from a snapshot, and return what the next run would migrate.

        This starts Spark only if the pipeline derives columns whose types only Spark knows.

        Args:
            pipeline: name of the pipeline.
            target: `latest`, an epoch, `savepoint:NAME`, or `none` for a start at the beginning of the source.

        Raises:
            Refused: the code can't; the message names each field that differs.
        """
        from tidegate.pipelines.project.snapshots import snapshot_check

        return snapshot_check(self._config, pipeline, str(target))


class SavepointMethods(Namespace):
    """Keep a snapshot under a name, optionally with its tables or in another place, so that nothing removes it."""

    def create(
        self,
        pipeline: str,
        name: str,
        *,
        of: str | int = "latest",
        if_missing: bool = False,
        tables: bool = False,
        to: str | None = None,
        keep: Count | None = None,
    ) -> Savepoint:
        """Copy a snapshot under a name that no cleanup removes. The pipeline may keep running.

        Args:
            pipeline: name of the pipeline.
            name: letters, digits, `_` and `-`.
            of: the snapshot to copy: `latest`, or an epoch.
            if_missing: True to change nothing if a savepoint of that name holds the same snapshot.
            tables: True to also copy the published tables as of the snapshot.
            to: folder or URI to copy to; None for the warehouse.
            keep: afterwards delete all but this many of the newest savepoints whose names equal `name` up to the last
                dash; a name without a dash gets the current time. None for all.

        Raises:
            UsageError: the name is not valid or is taken, or there is no such snapshot.
            Refused: a file is missing, or a key was forgotten during the copy.
        """
        from tidegate.pipelines.project.savepoints import SavepointOrder, savepoint_create

        return savepoint_create(self._config, pipeline, SavepointOrder(name, str(of), if_missing, tables, to, keep))

    def list(self, pipeline: str, *, at: str | None = None) -> Savepoints:
        """Return the savepoints of a pipeline, newest first, and those that can't be read, with the reason.

        Args:
            pipeline: name of the pipeline.
            at: folder or URI of the savepoints; None for the warehouse.
        """
        from tidegate.pipelines.project.savepoints import savepoint_list

        return savepoint_list(self._config, pipeline, at)

    def delete(self, pipeline: str, name: str, *, at: str | None = None) -> SavepointDeleted:
        """Delete a savepoint permanently.

        Args:
            pipeline: name of the pipeline.
            name: name of the savepoint.
            at: folder or URI of the savepoint; None for the warehouse.
        """
        from tidegate.pipelines.project.savepoints import savepoint_delete

        return savepoint_delete(self._config, pipeline, name, at)


class LateMethods(Namespace):
    """Count, reopen or prune late rows: rows that arrived after their windows had closed."""

    def summary(self, pipeline: str, *, by: str | None = None) -> LateSummary:
        """Count late rows by reason, with how late they were, and how many of them were reopened.

        The quantiles show what an allowed lateness would have achieved: with the value in column p95, 95 % of these
        rows would have been on time.

        Args:
            pipeline: name of the pipeline.
            by: also count by this column of table `late`: epoch, window_start, or a column of the input.
        """
        from tidegate.pipelines.project.late import late_summary

        return late_summary(self._config, pipeline, by)

    def reopen(
        self,
        pipeline: str,
        *,
        key: KeyGiven | None = None,
        start: Moment | None = None,
        end: Moment | None = None,
        patience: Seconds = 0.0,
        strict: bool = False,
    ) -> Reopened:
        """Reprocess late rows into the windows that they missed: all, or those of a key or time span.

        Only the windows that they belong to are recomputed from the source; their old panes are retracted and new panes
        published, in one epoch. Sessions that a late row connects become one. No row is reopened twice.

        Rows that can't be reopened, for example because source files of their time are missing, stay in table `late`;
        they are listed with the reasons. The others are then reopened, in several epochs if need be.

        A continuous stream holds the lease and reopens late rows itself, on the `reopen_schedule` of tidegate.toml.

        Args:
            pipeline: name of the pipeline.
            key: only late rows of this key: the values of its columns.
            start: only late rows whose window begins at this time or later. Without a zone, it is in the pipeline's
                timezone.
            end: only late rows whose window begins before this time.
            patience: seconds to wait for a running stream that ends on its own.
            strict: True to reopen nothing, and raise the error, if a row can't be reopened.

        Raises:
            Refused: the results of the pipeline depend on the order of arrival, or with `strict` a row can't be
                reopened.
            LeaseHeld: another driver is running the pipeline.
        """
        from tidegate.pipelines.correct.request import Selection
        from tidegate.pipelines.project.late import late_reopen

        zone = self._config.entry(pipeline).clock
        span = (millis_of(moment, field, zone) for moment, field in ((start, "--start"), (end, "--end")))
        selection = Selection(key_text(key), *span)
        return late_reopen(self._config, pipeline, selection, patience, strict, self._teller_of(pipeline))

    def prune(self, pipeline: str, *, days: Number) -> Pruned:
        """Remove late and rejected rows of old epochs. Their counts stay in table `epochs`.

        Args:
            pipeline: name of the pipeline.
            days: keep the rows of epochs up to this age.
        """
        from tidegate.pipelines.project.late import late_prune

        return late_prune(self._config, pipeline, days)


class QualityMethods(Namespace):
    """Check the tables of a pipeline, and let known bad windows pass."""

    def check(
        self,
        pipeline: str,
        *,
        epoch: int | None = None,
        all: bool = False,  # noqa: A002 - named like the option
        partitions: PartitionUnit | None = None,
        since: str | None = None,
        report: bool = False,
    ) -> Quality:
        """Check the tables of a pipeline as of an epoch.

        The check applies Tidegate's own rules to all tables, and the suite that tidegate.toml names to the windows that
        became final since the last check that passed. It fails if a critical expectation does not hold: then
        `require()` of the outcome raises an error, and the command ends with exit code 5. A warning only marks the run.
        An expectation that can't be evaluated is an error of the suite.

        Args:
            pipeline: name of the pipeline.
            epoch: check the snapshot of this epoch; None for the newest.
            all: True to check every current window, and to read every file.
            partitions: also return the partitions of this length whose final windows changed, by the start of the
                windows in UTC.
            since: count only changes since an earlier check: the JSON of `mark` in its outcome.
            report: True to also write the run report, regardless of the outcome.

        Raises:
            UsageError: the suite is faulty, or a library for checks is not installed.
            Refused: the pipeline has no such epoch.
        """
        self._config.entry(pipeline)
        require("a check", "great_expectations", "jinja2", "pandas", extra="quality")
        if report:
            require("the run report", "jinja2", "matplotlib")
        from tidegate.expectations.check import check

        return check(self._config, pipeline, epoch, all, partitions, since, report)

    def acknowledge(self, pipeline: str, *, where: str, reason: str) -> Acknowledged:
        """Let known bad windows pass the pipeline's own suite from now on.

        The suite skips the windows that satisfy the condition, as they are now: a window whose result changes is
        checked again.

        Args:
            pipeline: name of the pipeline.
            where: SQL condition on columns of the final windows.
            reason: why these windows may pass; the reason is stored and shown.

        Raises:
            UsageError: no window satisfies the condition.
        """
        self._config.entry(pipeline)
        require("an acknowledgement", "great_expectations", "pandas", extra="quality")
        from tidegate.expectations.check import acknowledge

        return acknowledge(self._config, pipeline, where, reason)


class TableMethods(Namespace):
    """Keep the tables of a pipeline small, rebuild and query table `windows`, and show where its data comes from."""

    def vacuum(
        self, pipeline: str, *, snapshots: Count | None = None, days: Number | None = None, dry_run: bool = False
    ) -> Vacuumed:
        """Remove files that no retained snapshot, published row or unpublished epoch needs.

        Old logs, runs and reports are removed too. Savepoints are kept. The snapshots that are listed afterwards can be
        restored.

        Args:
            pipeline: name of the pipeline.
            snapshots: number of newest snapshots to keep; None for `retain_snapshots` of tidegate.toml.
            days: also keep snapshots up to this age, for a stream one per hour; None for `retain_days` of
                tidegate.toml.
            dry_run: True to show what would be removed, and change nothing.
        """
        from tidegate.pipelines.project.clean import vacuum

        return vacuum(self._config, pipeline, snapshots, days, dry_run)

    def optimize(self, pipeline: str) -> Optimized:
        """Merge the small files of a pipeline's tables. No row changes; `vacuum` removes the old files later."""
        from tidegate.pipelines.project.clean import optimize

        return optimize(self._config, pipeline)

    def rebuild_windows(self, pipeline: str) -> WindowsBuilt:
        """Rebuild table `windows`, which has one row for each window that has a result, from table `results`.

        The table gets the settings of `[pipelines.NAME.windows]` in tidegate.toml. Runs fill the table automatically;
        rebuild it for a pipeline that no longer runs, or after a setting of the table has changed. While the settings
        are being changed, readers see no windows in the table.

        Raises:
            UsageError: the pipeline has no such table.
            Refused: the pipeline has no snapshot yet, or a key or result has the name of the partition column.
            LeaseHeld: a driver is running the pipeline.
        """
        from tidegate.pipelines.project.clean import rebuild_windows

        return rebuild_windows(self._config, pipeline)

    def query(
        self,
        pipeline: str,
        *,
        dialect: Literal["spark", "duckdb", "standard"] = "spark",
        schema: str | None = None,
    ) -> Query:
        """Return a query for the final windows of a pipeline, to be run or saved as a view.

        Args:
            pipeline: name of the pipeline.
            dialect: the engine's SQL. Spark, and DuckDB with its extension delta, need no catalog; standard needs
                `schema`.
            schema: schema of the tables in the engine's catalog, such as lake.visits; None for paths.
        """
        from tidegate.pipelines.project.results import query

        return query(self._config, pipeline, dialect, schema)

    def lineage(
        self,
        pipeline: str,
        *,
        command: Literal["drive", "quality"] = "drive",
        since: Moment | None = None,
        until: Moment | None = None,
    ) -> Lineage:
        """Return the datasets of a pipeline by their OpenLineage names, and the source columns of each of its columns.

        As a dict or JSON, the answer has the datasets with all their facets. Nothing is sent anywhere.

        Args:
            pipeline: name of the pipeline.
            command: `drive` for a run that computes windows, such as a backfill or a stream; `quality` for a check of
                the tables.
            since: count the output of epochs that began at this time or later.
            until: with `since`, only epochs that began before this time.
        """
        from tidegate.pipelines.project.lineage import lineage

        zone = self._config.entry(pipeline).clock
        span = (millis_of(moment, field, zone) for moment, field in ((since, "--since"), (until, "--until")))
        return lineage(self._config, pipeline, command, *span)


class DriverMethods(Namespace):
    """Stop the driver that runs a pipeline, ask whether it is alive, or take the lease from a dead one."""

    def stop(self, pipeline: str, *, patience: Seconds = 600.0) -> StoppedDriver:
        """Ask the driver of a pipeline, on any host, to end after its current epoch, and wait until it has ended.

        Args:
            pipeline: name of the pipeline.
            patience: seconds to wait for its current epoch.

        Raises:
            Refused: the pipeline has no running driver.
            LeaseHeld: the driver did not end within `patience` seconds.
        """
        from tidegate.pipelines.project.driver import stop

        return stop(self._config, pipeline, patience, self._teller_of(pipeline))

    def alive(self, pipeline: str, *, within: Annotated[float, Bound(0, exclusive=True)] = 3600.0) -> Alive:
        """Check that a stream on this host gave a heartbeat recently. The command ends with 1 if it did not.

        A stream that waits for data is alive. The heartbeat is a file in the work folder. The stream may run in another
        container with the same folder if both see the same processes.

        Args:
            pipeline: name of the pipeline.
            within: longest time since the last heartbeat, in seconds. While it computes, an epoch writes no heartbeats.

        Raises:
            TidegateError: no such stream is running, or it hangs.
        """
        from tidegate.pipelines.project.driver import alive

        return alive(self._config, pipeline, within)

    def unlock(self, pipeline: str) -> Unlocked:
        """Remove the lease of a pipeline from a driver that died, on this host or another one.

        A lease expires a minute after its driver died. If the clock of the driver's host was ahead, it expires later;
        this removes it now. A driver that is running on this host keeps its lease. If a driver on another host turns
        out to be alive, it takes the lease back, or ends with exit code 4 if another driver has it by then.

        Raises:
            Refused: nobody holds the lease, or its driver is running on this host.
        """
        from tidegate.pipelines.project.driver import unlock

        return unlock(self._config, pipeline)


class SourceMethods(Namespace):
    """Reset the position in the source of a pipeline, after its table was dropped and created again."""

    def reset(
        self,
        pipeline: str,
        *,
        keep_results: bool = False,
        from_: Literal["beginning", "now"] | None = None,
        force: bool = False,
        dry_run: bool = False,
    ) -> SourceReset:
        """Let a pipeline continue with a source table that was dropped and created again.

        State, watermark and results are kept; only the position in the source changes. Tidegate does not compare the
        new rows with the old ones. A stream reads the new table from its first commit: rows behind the watermark are
        late, and rows of open windows that were read before count twice. From `now`, all rows that the table has now
        count as read. For a backfill, rows before the end of its newest interval count as read.

        Args:
            pipeline: name of the pipeline.
            keep_results: True to keep state and results, and continue from them; it must be given.
            from_: for a stream: read the new table from its first commit, or only later commits; None for `beginning`.
            force: True to reset even if the table has not been replaced.
            dry_run: True to show the new position, and change nothing.
        """
        from tidegate.pipelines.project.source import source_reset

        return source_reset(self._config, pipeline, keep_results, from_, force, dry_run)
