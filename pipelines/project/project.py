"""`Project`: one object with a method for each command, for notebooks, jobs, `spark-submit` and the command line.

Each method imports what it needs when it is called, so creating a project loads no table libraries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args, overload

from tidegate.extras import require
from tidegate.pipelines.definition.config import Config, EngineName, PartitionUnit, config_of, load_config
from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.project.progress import OnProgress, ProgressLine, Teller, silent
from tidegate.pipelines.run.stopping import StopRequest

if TYPE_CHECKING:
    from dateutil.relativedelta import relativedelta

    from tidegate.expectations.check import Acknowledged, Quality
    from tidegate.pipelines.ask.advise import Advice
    from tidegate.pipelines.ask.compare import Comparison
    from tidegate.pipelines.ask.explain import Explained
    from tidegate.pipelines.ask.trace import Trace
    from tidegate.pipelines.ask.verify import Verified
    from tidegate.pipelines.ask.why import Why
    from tidegate.pipelines.definition.pipeline import Pipeline
    from tidegate.pipelines.engine.spark.given import Session
    from tidegate.pipelines.project.backfill import Backfilled, BackfillPlan, Replayed, Span
    from tidegate.pipelines.project.clean import Optimized, Vacuumed, WindowsBuilt
    from tidegate.pipelines.project.driver import Alive, StoppedDriver, Unlocked
    from tidegate.pipelines.project.forget import Erased
    from tidegate.pipelines.project.given import KeyGiven, Length, Moment
    from tidegate.pipelines.project.late import LateSummary, Pruned, Reopened
    from tidegate.pipelines.project.lineage import Lineage
    from tidegate.pipelines.project.listing import Pipelines, Report, Runs
    from tidegate.pipelines.project.restart import Restart
    from tidegate.pipelines.project.results import Results, View
    from tidegate.pipelines.project.savepoints import Savepoint, SavepointDeleted, Savepoints
    from tidegate.pipelines.project.snapshots import Restored, SnapshotCheck, SnapshotContent, SnapshotDiff, Snapshots
    from tidegate.pipelines.project.source import SourceReset
    from tidegate.pipelines.project.stream import Streamed, StreamedTogether


class Project:
    r"""The pipelines of a warehouse, and what can be done with them.

    A method is named like its command, with `_` for a space: `tidegate savepoint create` is `savepoint_create`. It
    takes the pipeline's name first, and the command's options by name, as Python values. It returns a frozen value with
    `to_dict()`, which notebooks show as tables. It raises the errors of `tidegate.pipelines.errors`, each with its
    `exit_code`, and prints nothing. An option that a message names, such as `--fill-gaps`, is the argument of that
    name, `fill_gaps`. Times without a zone are in the pipeline's `timezone`.

    Args:
        config_file: tidegate.toml; None, without `warehouse`, for the file that a command would find.
        warehouse: folder or URI of the tables of a project without a file.
        pipelines: the Pipeline values of a project without a file.
        settings: by pipeline, fields as in `[pipelines.NAME]` of tidegate.toml, for a project without a file.
        work: folder on this host for logs and temporary files; None for `.work` in the current folder.
        storage_options: options of the object store.
        engine: `spark`, or `local` for processes on this machine, without Java; None for the engine that the file
            names.
        spark: an existing session. Runs use another session of its process with the same settings, so this one keeps
            its settings, current database, views and functions. It is never stopped.
        progress: called with the progress of a run; True shows the progress in a line on standard error.

    Raises:
        UsageError: tidegate.toml is missing or faulty, or the arguments contradict each other.

    >>> from tempfile import mkdtemp
    >>> import pyarrow as pa
    >>> from deltalake import write_deltalake
    >>> from tidegate import Count, DeltaSource, EventTimeSessionWindows, Pipeline, Project, WatermarkStrategy, Windows
    >>> visits = Pipeline(
    ...     name="visits",
    ...     source=DeltaSource("clicks", timestamp="at", unit="ms"),
    ...     key=("user",),
    ...     watermark=WatermarkStrategy.for_bounded_out_of_orderness(5),
    ...     compute=Windows(EventTimeSessionWindows.with_gap(10), aggregate={"clicks": Count()}),
    ... )
    >>> folder = mkdtemp()
    >>> write_deltalake(f"{folder}/clicks", pa.table({"user": ["ann", "ann", "bob"], "at": [100, 108, 150]}))
    >>> project = Project(warehouse=folder, work=f"{folder}/work", pipelines=[visits], engine="local")
    >>> run = project.stream("visits", end_of_input=True)
    >>> [(row["user"], row["clicks"]) for row in project.results("visits", sort="clicks").to_dict()]
    [('ann', 2), ('bob', 1)]
    """

    def __init__(
        self,
        config_file: str | Path | None = None,
        *,
        warehouse: str | Path | None = None,
        pipelines: Iterable[Pipeline] = (),
        settings: Mapping[str, Mapping[str, object]] | None = None,
        work: str | Path | None = None,
        storage_options: Mapping[str, str] | None = None,
        engine: EngineName | None = None,
        spark: Session | None = None,
        progress: bool | OnProgress = False,
    ) -> None:
        values = {pipeline.name: pipeline for pipeline in pipelines}
        given = {"warehouse": warehouse, "work": work, "storage_options": storage_options}
        of_code = {name: str(value) if isinstance(value, Path) else value for name, value in given.items()}
        if warehouse is None:
            if named := [
                name for name, value in {**of_code, "pipelines": values, "settings": settings}.items() if value
            ]:
                raise UsageError(f"{named[0]}: only with warehouse=; otherwise set it in tidegate.toml")
            config = load_config(None if config_file is None else Path(config_file))
        elif config_file is not None:
            raise UsageError("give config_file or warehouse, not both: the file of a project names its warehouse")
        else:
            config = config_of(values, settings or {}, of_code)
        self._config = _with_engine(config, engine, spark)
        self._progress = progress if callable(progress) else ProgressLine() if progress else silent

    @property
    def config(self) -> Config:
        """The settings."""
        return self._config

    def _teller(self, pipeline: str) -> Teller:
        return Teller(pipeline, self._progress)

    # Run

    def backfill(
        self,
        pipeline: str,
        start: Moment | None = None,
        end: Moment | None = None,
        *,
        slice: Length | relativedelta | None = None,  # noqa: A002 - named like the option
        and_following: bool = False,
        fill_gaps: bool = False,
        again: bool = False,
        end_of_input: bool = False,
        patience: float = 0.0,
    ) -> Backfilled:
        """Run a pipeline over event time from `start` to `end`, in one epoch for each slice.

        Args:
            pipeline: name of the pipeline.
            start: first event time. Without a zone, it is in the pipeline's `timezone`.
            end: end of event time, exclusive.
            slice: length of each epoch's interval, such as `timedelta(days=1)` or `"1mo"`; None for one epoch. Days,
                weeks and months are those of the pipeline's `timezone`.
            and_following: True to also rerun the later intervals after an interval that was rerun.
            fill_gaps: True to first run the intervals that are missing before `start`.
            again: True to run an interval again even if its rows and the code seem unchanged.
            end_of_input: True to end event time after the last interval, so that open windows fire.
            patience: seconds to wait for another backfill that is running.

        Raises:
            UsageError: the times are missing or are not an interval.
            Refused: rows would be lost, a source does not exist, or a stream has taken over.
            LeaseHeld: another driver is running the pipeline.
        """
        from tidegate.pipelines.project.backfill import backfill

        span = _span(self._config, pipeline, start, end, slice, fill_gaps)
        teller = self._teller(pipeline)
        return backfill(self._config, pipeline, span, and_following, again, end_of_input, patience, teller)

    def backfill_plan(
        self,
        pipeline: str,
        start: Moment | None,
        end: Moment | None,
        *,
        slice: Length | relativedelta | None = None,  # noqa: A002 - named like the option
        fill_gaps: bool = False,
        again: bool = False,
    ) -> BackfillPlan:
        """Return what `backfill` would do with each interval (`--dry-run`). Nothing changes, and no engine starts."""
        from tidegate.pipelines.project.backfill import plan_backfill

        span = _span(self._config, pipeline, start, end, slice, fill_gaps)
        return plan_backfill(self._config, pipeline, span, again)

    def replay(self, pipeline: str, *, commits_per_epoch: int | None = None) -> Replayed:
        """Replay the source's commits as a stream would have seen them (`backfill --order arrival`).

        Args:
            pipeline: name of the pipeline.
            commits_per_epoch: number of source commits in one epoch; None for all of them.

        Raises:
            Refused: the pipeline is a backfill in event order, or the log entry of a commit no longer exists.
        """
        from tidegate.pipelines.project.backfill import replay

        return replay(self._config, pipeline, commits_per_epoch, self._teller(pipeline))

    @overload
    def stream(
        self,
        pipeline: str,
        *,
        interval: Length | None = None,
        end_of_input: bool = False,
        restore: str | int = "latest",
        restore_from_timeline: int | None = None,
        parallelism: int | None = None,
        max_files_per_epoch: int | None = None,
        max_bytes_per_epoch: int | str | None = None,
        max_commits_per_epoch: int | None = None,
        max_rows_per_epoch: int | None = None,
        patience: float = 0.0,
        stop: StopRequest | None = None,
    ) -> Streamed: ...

    @overload
    def stream(
        self,
        pipeline: list[str] | tuple[str, ...],
        *,
        interval: Length | None = None,
        end_of_input: bool = False,
        max_files_per_epoch: int | None = None,
        max_bytes_per_epoch: int | str | None = None,
        max_commits_per_epoch: int | None = None,
        max_rows_per_epoch: int | None = None,
        patience: float = 0.0,
        stop: StopRequest | None = None,
    ) -> StreamedTogether: ...

    def stream(
        self,
        pipeline: str | list[str] | tuple[str, ...],
        *,
        interval: Length | None = None,
        end_of_input: bool = False,
        restore: str | int = "latest",
        restore_from_timeline: int | None = None,
        parallelism: int | None = None,
        max_files_per_epoch: int | None = None,
        max_bytes_per_epoch: int | str | None = None,
        max_commits_per_epoch: int | None = None,
        max_rows_per_epoch: int | None = None,
        patience: float = 0.0,
        stop: StopRequest | None = None,
    ) -> Streamed | StreamedTogether:
        """Run a pipeline as a stream: over the data currently in the source, or until it is stopped.

        Several pipelines run in this process with one engine and a lease for each, one epoch after the other. A failure
        does not stop the others, and is not raised but reported in `failed` of the result.

        Args:
            pipeline: name of the pipeline, or a list of names.
            interval: time between two polls of the source, until `stop` is called; None reads the available data and
                ends.
            end_of_input: True to end event time at the end, so that all windows fire; only without `interval`.
            restore: the snapshot to begin from: `latest`, an epoch, `savepoint:NAME`; or `none` for the beginning of
                the source.
            restore_from_timeline: restore only if the pipeline is on this timeline.
            parallelism: number of shards; None for the pipeline's setting, or the number of cores.
            max_files_per_epoch: limit on the source files in one epoch.
            max_bytes_per_epoch: approximate limit on the bytes of source files in one epoch, such as `"1g"`.
            max_commits_per_epoch: limit on the source commits in one epoch.
            max_rows_per_epoch: limit on the rows of the source files in one epoch; None for 20,000,000.
            patience: seconds to wait for a running stream that ends on its own.
            stop: a request with which another thread or a signal handler can end the stream after the current epoch.

        Raises:
            UsageError: `end_of_input` is given with `interval`.
            Refused: a source does not exist, or its rows changed and the pipeline does not correct them.
            LeaseHeld: another driver is running the pipeline.
        """
        from tidegate.pipelines.project.given import length_of, size_of
        from tidegate.pipelines.project.stream import StreamOptions, stream, stream_together
        from tidegate.pipelines.run.next_commits import EpochLimits

        if end_of_input and interval is not None:
            raise UsageError("--end-of-input needs --available-now: a stream with --interval has no end")
        max_bytes = size_of(max_bytes_per_epoch, "--max-bytes-per-epoch")
        options = StreamOptions(
            None if interval is None else length_of(interval, "--interval"),
            end_of_input,
            str(restore),
            restore_from_timeline,
            parallelism,
            EpochLimits(max_files_per_epoch, max_bytes, max_commits_per_epoch, max_rows_per_epoch),
            patience,
        )
        if not isinstance(pipeline, str):
            return stream_together(self._config, pipeline, options, stop or StopRequest(), self._teller)
        return stream(self._config, pipeline, options, stop or StopRequest(), self._teller(pipeline))

    def stop(self, pipeline: str, *, patience: float = 600.0) -> StoppedDriver:
        """Ask the driver of a pipeline, on any host, to end after its current epoch, and wait until it has ended.

        Raises:
            Refused: the pipeline has no running driver.
            LeaseHeld: the driver did not end within `patience` seconds.
        """
        from tidegate.pipelines.project.driver import stop

        return stop(self._config, pipeline, patience, self._teller(pipeline))

    def alive(self, pipeline: str, *, within: float = 3600.0) -> Alive:
        """Check that a stream on this host gave a heartbeat within this many seconds.

        Raises:
            TidegateError: no such stream is running, or it hangs.
        """
        from tidegate.pipelines.project.driver import alive

        return alive(self._config, pipeline, within)

    def unlock(self, pipeline: str) -> Unlocked:
        """Remove the lease of a pipeline from a driver that died.

        Raises:
            Refused: nobody holds the lease, or its driver is running on this host.
        """
        from tidegate.pipelines.project.driver import unlock

        return unlock(self._config, pipeline)

    # Inspect

    def list(self) -> Pipelines:
        """Return the pipelines of the project: mode, watermark, lag and last check of each. Starts no engine."""
        from tidegate.pipelines.project.listing import list_pipelines

        return list_pipelines(self._config, datetime.now(UTC))

    def results(
        self,
        pipeline: str,
        *,
        view: View = "final",
        where: str | None = None,
        limit: int | None = None,
        sort: str | None = None,
        local: str | None = None,
    ) -> Results:
        """Return the windows of a pipeline, or the results of its process function or join, newest first.

        Args:
            pipeline: name of the pipeline.
            view: `final` for windows that can no longer change, `latest` for the newest result of each window,
                `windows` for table windows, or `all` for every pane.
            where: condition in Spark SQL on the columns of the view, such as `user = 'ann' AND clicks > 3`; times
                without a zone are in UTC. None for all rows.
            limit: largest number of rows; None for all.
            sort: column to sort by, largest first; None for the end of the windows, or event time.
            local: zone of the times, such as `Europe/Berlin`; the rows then have a column with the local date.

        Raises:
            UsageError: there is no such column or zone, or `where` can't be evaluated.
            Refused: the pipeline has no snapshot yet.
        """
        from tidegate.pipelines.project.results import results

        return results(self._config, pipeline, view, where, limit, sort, local)

    def results_sql(self, pipeline: str, *, dialect: str = "spark", schema: str | None = None) -> str:
        """Return a query for the final windows of a pipeline, to be saved as a view (`results --sql`).

        Args:
            pipeline: name of the pipeline.
            dialect: the engine's SQL: `spark`, `duckdb` or `standard`.
            schema: schema of the tables in the engine's catalog; None for paths.
        """
        from tidegate.pipelines.project.results import results_sql

        return results_sql(self._config, pipeline, dialect, schema)

    def runs(self, pipeline: str, *, limit: int | None = 20, stale: bool = False) -> Runs:
        """Return the newest epochs: their events, results and durations.

        Args:
            pipeline: name of the pipeline.
            limit: largest number of epochs; None for all.
            stale: True to also return epochs whose results were replaced.
        """
        from tidegate.pipelines.project.listing import runs

        return runs(self._config, pipeline, limit, stale)

    def why(self, pipeline: str, *, key: KeyGiven | None = None, limit: int | None = 10) -> Why:
        """Return why windows have not fired: what each one waits for, and which source partition holds event time back.

        Args:
            pipeline: name of the pipeline.
            key: values of the key columns; None for windows of all keys.
            limit: largest number of windows; None for all.
        """
        from tidegate.pipelines.ask.why import why
        from tidegate.pipelines.project.given import key_text

        return why(self._config, pipeline, key_text(key), limit)

    def advise(
        self,
        pipeline: str,
        *,
        bound: Iterable[Length] = (),
        lateness: Iterable[Length] = (),
        idleness: Iterable[Length] = (),
        gap: Iterable[Length] = (),
        from_version: int = 0,
        page: bool = False,
        to: Path | None = None,
    ) -> Advice:
        """Return what other time settings would have done to the rows of the source, without a run.

        The late rows are those of a stream that reads the source from the beginning. Without values, some are chosen
        from the rows.

        Args:
            pipeline: name of the pipeline.
            bound: bounds on out-of-orderness to evaluate; with other fields, every combination.
            lateness: allowed lateness to evaluate.
            idleness: idle timeouts of source partitions to evaluate.
            gap: session gaps to evaluate.
            from_version: first version of the source to read.
            page: True to write the curve as a page next to the run reports, which link to it.
            to: file for the page.

        Raises:
            Refused: which rows are late depends on the user's code, or rows can't be late.
        """
        from tidegate.pipelines.ask.advise import advise
        from tidegate.pipelines.project.given import lengths_of

        values = {
            "bound": lengths_of(bound, "--bound", or_zero=True),
            "lateness": lengths_of(lateness, "--lateness", or_zero=True),
            "idleness": lengths_of(idleness, "--idleness"),
            "gap": lengths_of(gap, "--gap"),
        }
        return advise(self._config, pipeline, values, from_version, page, to)

    def trace(
        self,
        pipeline: str,
        key: KeyGiven = (),
        *,
        window: Moment | None = None,
        limit: int | None = 100,
        page: bool = False,
        to: Path | None = None,
    ) -> Trace:
        """Return what happened to a key: its rows, their watermarks, windows, panes and late rows.

        Args:
            pipeline: name of the pipeline.
            key: values of the key columns, in order.
            window: only the window that starts at this time.
            limit: number of the newest lines of each table that are shown and that the page has; None for all. The
                value has all of them.
            page: True to write it as a page with a timeline, next to the run reports.
            to: file for the page.

        Raises:
            Refused: the history can't be derived from the source and the tables.
        """
        from tidegate.pipelines.ask.trace import trace
        from tidegate.pipelines.project.given import key_text, millis_of

        starts = millis_of(window, "--window", self._config.entry(pipeline).clock)
        return trace(self._config, pipeline, key_text(key) or (), starts, page, to, limit)

    def verify(
        self,
        pipeline: str,
        *,
        sample: float | str = "1%",
        seed: int | None = None,
        new: bool = False,
        budget: float | str | None = None,
    ) -> Verified:
        """Recompute windows from the source, and compare them with what is published.

        Call `require()` on the outcome to raise an error if something differs.

        Args:
            pipeline: name of the pipeline.
            sample: share of the keys to sample: a number above 0 and at most 1, a string such as `1%`, or `all`.
            seed: seed of the sample; None for the newest epoch, so each epoch has a different sample.
            new: True verifies only what was published since the newest such verification that found no difference.
            budget: verifies one of the newest epochs, and only if the last such verification took at most this share of
                the time of the epochs since then, such as `2%`.
        """
        from tidegate.pipelines.ask.verify import verify
        from tidegate.pipelines.project.given import share_of

        if new and budget is not None:
            raise UsageError("--new verifies all new epochs, and --budget one of them: give one of the two")
        allowed = None if budget is None else share_of(budget, "--budget")
        return verify(self._config, pipeline, share_of(sample, "--sample"), seed, new, allowed)

    def explain(self, pipeline: str) -> Explained:
        """Check a pipeline, and return how it runs: the operator, why it was chosen, and the steps of an epoch.

        Raises:
            Refused: a column is missing or has an unsuitable type, or an expression is faulty.
        """
        from tidegate.pipelines.ask.explain import explain

        return explain(self._config, pipeline)

    def lineage(
        self,
        pipeline: str,
        *,
        command: Literal["drive", "quality"] = "drive",
        since: Moment | None = None,
        until: Moment | None = None,
    ) -> Lineage:
        """Return the datasets that a pipeline reads and writes, as in OpenLineage, and each column's source columns.

        Args:
            pipeline: name of the pipeline.
            command: `drive` for a run that computes windows, `quality` for a check of the tables.
            since: count the output of epochs that began at this time or later.
            until: with `since`, only epochs that began before this time.
        """
        from tidegate.pipelines.project.given import millis_of
        from tidegate.pipelines.project.lineage import lineage

        zone = self._config.entry(pipeline).clock
        span = (millis_of(moment, field, zone) for moment, field in ((since, "--since"), (until, "--until")))
        return lineage(self._config, pipeline, command, *span)

    def report(
        self,
        pipeline: str,
        *,
        epoch: int | None = None,
        key: str | None = None,
        window: Moment | None = None,
        to: str | Path | None = None,
    ) -> Report:
        r"""Write the report of a run as one HTML page.

        Args:
            pipeline: name of the pipeline.
            epoch: epoch of the run; None for the newest.
            key: key whose windows the timeline shows, with its columns joined by `/` and `\N` for a null; None for the
                busiest.
            window: start of a window of that key to draw: its rows, watermark, merges and panes.
            to: the file; None for a file among the artifacts.
        """
        from tidegate.pipelines.project.given import millis_of
        from tidegate.pipelines.project.listing import report

        place = None if to is None else Path(to)
        starts = millis_of(window, "--window", self._config.entry(pipeline).clock)
        return report(self._config, pipeline, epoch, key, place, starts)

    def quality(
        self,
        pipeline: str,
        *,
        epoch: int | None = None,
        all: bool = False,  # noqa: A002 - named like the option
        partitions: PartitionUnit | None = None,
        since: str | None = None,
        report: bool = False,
    ) -> Quality:
        """Check the tables of a pipeline as of an epoch. `require()` of the outcome raises if the check failed.

        Args:
            pipeline: name of the pipeline.
            epoch: the epoch; None for the newest.
            all: True to check every current window, and to read every file.
            partitions: also return the partitions of this length whose final windows changed.
            since: JSON of the `mark` of an earlier outcome; only later changes count.
            report: True to also write the run report.

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

    def quality_acknowledge(self, pipeline: str, *, where: str, reason: str) -> Acknowledged:
        """Let known bad windows pass the pipeline's own suite from now on.

        Args:
            pipeline: name of the pipeline.
            where: SQL condition on columns of the final windows.
            reason: why they may pass; the reason is stored and shown.

        Raises:
            UsageError: no window satisfies the condition.
        """
        self._config.entry(pipeline)
        require("an acknowledgement", "great_expectations", "pandas", extra="quality")
        from tidegate.expectations.check import acknowledge

        return acknowledge(self._config, pipeline, where, reason)

    # Snapshots

    def snapshot_list(self, pipeline: str) -> Snapshots:
        """Return the snapshots of a pipeline that can be restored, newest first."""
        from tidegate.pipelines.project.snapshots import snapshot_list

        return snapshot_list(self._config, pipeline)

    def snapshot_show(
        self,
        pipeline: str,
        target: str | int = "latest",
        *,
        rows: int = 20,
        key_group: int | None = None,
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

    def snapshot_diff(
        self, pipeline: str, first: str | int, second: str | int = "latest", *, rows: int | None = 20
    ) -> SnapshotDiff:
        """Return the windows and timers that were added, removed or changed from one snapshot to another."""
        from tidegate.pipelines.project.snapshots import snapshot_diff

        return snapshot_diff(self._config, pipeline, str(first), str(second), rows)

    def snapshot_check(self, pipeline: str, target: str | int = "latest") -> SnapshotCheck:
        """Check that the current code can continue from a snapshot, or start with `none`.

        Raises:
            Refused: the code can't; the message names each field that differs.
        """
        from tidegate.pipelines.project.snapshots import snapshot_check

        return snapshot_check(self._config, pipeline, str(target))

    def savepoint_create(
        self,
        pipeline: str,
        name: str,
        *,
        of: str | int = "latest",
        if_missing: bool = False,
        tables: bool = False,
        to: str | None = None,
        keep: int | None = None,
    ) -> Savepoint:
        """Copy a snapshot under a name that no cleanup removes. The pipeline may keep running.

        Args:
            pipeline: name of the pipeline.
            name: letters, digits, `_` and `-`.
            of: `latest`, or an epoch.
            if_missing: True to change nothing if a savepoint of that name holds the same snapshot.
            tables: True to also copy the published tables as of the snapshot.
            to: folder or URI to copy to; None for the warehouse.
            keep: afterwards delete all but this many of the newest savepoints whose names equal this one up to the last
                dash; a name without a dash gets the current time. None keeps all.

        Raises:
            UsageError: the name is not valid or is taken, or there is no such snapshot.
            Refused: a file is missing, or a key was forgotten during the copy.
        """
        from tidegate.pipelines.project.savepoints import savepoint_create

        return savepoint_create(self._config, pipeline, name, str(of), if_missing, tables, to, keep)

    def savepoint_list(self, pipeline: str, *, at: str | None = None) -> Savepoints:
        """Return the savepoints of a pipeline, newest first, and the savepoints that can't be read.

        Args:
            pipeline: name of the pipeline.
            at: folder or URI of the savepoints; None for the warehouse.
        """
        from tidegate.pipelines.project.savepoints import savepoint_list

        return savepoint_list(self._config, pipeline, at)

    def savepoint_delete(self, pipeline: str, name: str, *, at: str | None = None) -> SavepointDeleted:
        """Delete a savepoint permanently.

        Args:
            pipeline: name of the pipeline.
            name: name of the savepoint.
            at: folder or URI of the savepoints; None for the warehouse.
        """
        from tidegate.pipelines.project.savepoints import savepoint_delete

        return savepoint_delete(self._config, pipeline, name, at)

    def compare(self, pipeline: str, other: str, *, rows: int | None = None) -> Comparison:
        """Return in which windows another pipeline differs from a pipeline, by how much, and why.

        If one of them was restored from the other, only windows that changed since then are compared.

        Args:
            pipeline: name of the pipeline.
            other: name of the other pipeline, which has the same key columns.
            rows: number of windows to return; None for all.

        Raises:
            Refused: their results can't be compared.
        """
        from tidegate.pipelines.ask.compare import compare

        return compare(self._config, pipeline, other, rows)

    def restore(
        self,
        pipeline: str,
        target: str | int | None = None,
        *,
        keep_stale: bool = False,
        restart: bool = False,
        dry_run: bool = False,
        tables: bool = False,
        source: str | None = None,
        at: str | None = None,
    ) -> Restored | Restart:
        """Make a snapshot the newest one. Results that were published after it are removed.

        Args:
            pipeline: name of the pipeline.
            target: `latest`, an epoch, or `savepoint:NAME`; None with `source` for `latest`, and with `restart`.
            keep_stale: True to keep those results, marked as stale.
            restart: True to remove all tables instead, so that the next run computes everything again from the source.
            dry_run: True to return what a restart would remove and rebuild, and change nothing.
            tables: True to replace all tables by those of the savepoint, which was created with its tables.
            source: name of another pipeline (`--from`) from whose snapshot this one begins, with its published rows.
            at: folder or URI of the savepoint; None for the warehouse.

        Raises:
            Refused: rows that belong to the snapshot are lost, or the source no longer has all rows for a restart.
            LeaseHeld: a driver is running the pipeline.
        """
        if restart:
            if target is not None or keep_stale or tables or source is not None or at is not None:
                raise UsageError("--restart removes all tables: leave out TARGET and the other options")
            from tidegate.pipelines.project.restart import restart as run

            return run(self._config, pipeline, dry_run, self._teller(pipeline))
        if dry_run:
            raise UsageError("--dry-run: only with --restart")
        if (source is not None or tables) and keep_stale:
            raise UsageError("--from and --tables bring all tables: leave out the other options")
        if source is not None:
            from tidegate.pipelines.project.restore_from import restore_from

            return restore_from(self._config, pipeline, source, "latest" if target is None else str(target), at)
        if target is None:
            raise UsageError("name the snapshot to restore: latest, an epoch, or savepoint:NAME; or give --restart")
        if tables:
            from tidegate.pipelines.project.restore_from import replace_tables

            return replace_tables(self._config, pipeline, str(target), at)
        from tidegate.pipelines.project.snapshots import restore

        return restore(self._config, pipeline, str(target), at, keep_stale)

    def source_reset(
        self,
        pipeline: str,
        *,
        keep_results: bool = False,
        begin: Literal["beginning", "now"] | None = None,
        force: bool = False,
        dry_run: bool = False,
    ) -> SourceReset:
        """Let a pipeline continue with a source table that was dropped and created again.

        Args:
            pipeline: name of the pipeline.
            keep_results: True to keep state and results; it must be given.
            begin: for a stream: read the new table from its `beginning`, or only what comes after `now` (`--from`).
            force: True to reset even if the table has not been replaced.
            dry_run: True to return the new position and change nothing.
        """
        from tidegate.pipelines.project.source import source_reset

        return source_reset(self._config, pipeline, keep_results, begin, force, dry_run)

    # Late rows, erasure, maintenance

    def late_summary(self, pipeline: str, *, by: str | None = None) -> LateSummary:
        """Count late rows by reason, with how late they were, and how many `late_reopen` has added.

        Args:
            pipeline: name of the pipeline.
            by: also count by this column of table `late`.
        """
        from tidegate.pipelines.project.late import late_summary

        return late_summary(self._config, pipeline, by)

    def late_reopen(
        self,
        pipeline: str,
        *,
        key: KeyGiven | None = None,
        start: Moment | None = None,
        end: Moment | None = None,
        patience: float = 0.0,
        strict: bool = False,
    ) -> Reopened:
        """Reprocess late rows into the windows that they missed, as one epoch if all of them can be reopened.

        Rows that can't be reopened, for example because source files of their time are missing, stay in table `late`;
        the answer lists them with the reasons. The others are then reopened in several epochs.

        Args:
            pipeline: name of the pipeline.
            key: only late rows of this key: the values of its columns.
            start: only late rows whose window begins at this time or later. Without a zone, it is in the pipeline's
                `timezone`, as for `backfill`.
            end: only late rows whose window begins before this time.
            patience: seconds to wait for a running stream that ends on its own. A continuous one reopens late rows on
                its `reopen_schedule`.
            strict: True reopens nothing, and raises the error, if a row can't be reopened.

        Raises:
            Refused: the results of the pipeline depend on the order of arrival, or with `strict` a row can't be
                reopened.
            LeaseHeld: another driver is running the pipeline.
        """
        from tidegate.pipelines.correct.recompute_plan import Selection
        from tidegate.pipelines.project.given import key_text, millis_of
        from tidegate.pipelines.project.late import late_reopen

        zone = self._config.entry(pipeline).clock
        span = (millis_of(moment, field, zone) for moment, field in ((start, "--start"), (end, "--end")))
        selection = Selection(key_text(key), *span)
        return late_reopen(self._config, pipeline, selection, patience, strict, self._teller(pipeline))

    def late_prune(self, pipeline: str, *, days: int) -> Pruned:
        """Remove late and rejected rows of epochs that are older than this many days. Their counts are kept."""
        from tidegate.pipelines.project.late import late_prune

        return late_prune(self._config, pipeline, days)

    def forget(
        self,
        pipeline: str,
        key: KeyGiven | None = None,
        *,
        keys: Iterable[KeyGiven] | None = None,
        where: str | None = None,
        dry_run: bool = False,
    ) -> Erased:
        """Erase keys from all tables and savepoints in one epoch, without confirmation. Older snapshots are removed.

        Give one of `key`, `keys` and `where`.

        Args:
            pipeline: name of the pipeline.
            key: values of the key columns, in order.
            keys: several keys.
            where: a condition on columns of the tables or the source, such as `user_id = 7`. It selects the keys whose
                rows all meet it; keys that also have other rows are listed as `shared`, and stay.
            dry_run: True to return the keys that `where` selects, and change nothing.

        Raises:
            UsageError: not exactly one of the three is given, a value is not a key, or no table has the columns of
                `where`.
        """
        from tidegate.pipelines.errors import UsageError
        from tidegate.pipelines.project.forget import forget, selected_keys
        from tidegate.pipelines.project.given import key_text

        if sum(given is not None for given in (key, keys, where)) != 1:
            raise UsageError("give one of key, keys and where")
        if dry_run:
            if where is None:
                raise UsageError("--dry-run shows the keys that --where selects: give --where")
            return selected_keys(self._config, pipeline, where)
        named = [key] if key is not None else [] if keys is None else list(keys)
        return forget(self._config, pipeline, [key_text(each) or () for each in named], where)

    def vacuum(
        self, pipeline: str, *, snapshots: int | None = None, days: int | None = None, dry_run: bool = False
    ) -> Vacuumed:
        """Remove files that no retained snapshot, published row or unpublished epoch needs, and old logs and reports.

        Args:
            pipeline: name of the pipeline.
            snapshots: number of newest snapshots to keep; None for `retain_snapshots` of the settings.
            days: also keep snapshots up to this age; None for `retain_days` of the settings.
            dry_run: True to change nothing.
        """
        from tidegate.pipelines.project.clean import vacuum

        return vacuum(self._config, pipeline, snapshots, days, dry_run)

    def optimize(self, pipeline: str) -> Optimized:
        """Merge the small files of a pipeline's tables. No row changes; `vacuum` removes the old files later."""
        from tidegate.pipelines.project.clean import optimize

        return optimize(self._config, pipeline)

    def windows_build(self, pipeline: str) -> WindowsBuilt:
        """Rebuild table `windows` from table `results`, with the settings of `[pipelines.NAME.windows]`.

        Raises:
            UsageError: the pipeline has no such table.
            Refused: the pipeline has no snapshot yet, or a key or result has the name of the partition column.
            LeaseHeld: a driver is running the pipeline.
        """
        from tidegate.pipelines.project.clean import windows_build

        return windows_build(self._config, pipeline)


def _with_engine(config: Config, engine: EngineName | None, spark: Session | None) -> Config:
    """Return the settings with the engine that the caller chose."""
    if engine not in (None, *get_args(EngineName)):
        raise UsageError(f"engine {engine!r}: give {' or '.join(get_args(EngineName))}")
    if spark is None:
        return config if engine is None else config.model_copy(update={"engine": engine})
    if engine == "local":
        raise UsageError('give spark or engine="local", not both: a session runs the engine "spark"')
    from tidegate.pipelines.engine.spark.given import check_session

    check_session(spark)
    return config.model_copy(update={"engine": "spark", "session": spark})


def _span(
    config: Config,
    pipeline: str,
    start: Moment | None,
    end: Moment | None,
    slice_: Length | relativedelta | None,
    fill_gaps: bool,
) -> Span:
    from tidegate.pipelines.project.backfill import Span
    from tidegate.pipelines.project.given import moment_of, slice_of

    zone = config.entry(pipeline).clock
    return Span(
        None if start is None else moment_of(start, "--start", zone),
        None if end is None else moment_of(end, "--end", zone),
        slice_of(slice_),
        fill_gaps,
    )
