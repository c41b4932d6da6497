"""`Project`: what users do with pipelines, for notebooks, jobs, `spark-submit` and the command line.

Each method imports what it needs when it is called, so creating a project loads no table libraries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self, get_args

from tidegate.pipelines.definition.config import Config, EngineName, config_of, load_config
from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.project.given import (
    Count,
    KeyGiven,
    Length,
    Moment,
    Number,
    Seconds,
    Slice,
    View,
    key_text,
    millis_of,
)
from tidegate.pipelines.project.namespaces import (
    DriverMethods,
    LateMethods,
    QualityMethods,
    SavepointMethods,
    SnapshotMethods,
    SourceMethods,
    TableMethods,
)
from tidegate.pipelines.project.progress import OnProgress, ProgressLine, Teller, silent
from tidegate.pipelines.run.limits import EpochLimits
from tidegate.pipelines.run.stopping import StopRequest

if TYPE_CHECKING:
    from tidegate.pipelines.ask.advise import Advice
    from tidegate.pipelines.ask.compare import Comparison
    from tidegate.pipelines.ask.explain import Explained
    from tidegate.pipelines.ask.size import Sized
    from tidegate.pipelines.ask.trace import Trace
    from tidegate.pipelines.ask.verify import Verified
    from tidegate.pipelines.ask.why import Why
    from tidegate.pipelines.definition.pipeline import Pipeline
    from tidegate.pipelines.engine.spark.given import Session
    from tidegate.pipelines.project.backfill import Backfilled, BackfillPlan, Replayed, Span
    from tidegate.pipelines.project.forget import Erased
    from tidegate.pipelines.project.listing import Pipelines, Report, Runs
    from tidegate.pipelines.project.restart import Restart
    from tidegate.pipelines.project.results import Results
    from tidegate.pipelines.project.snapshots import Restored
    from tidegate.pipelines.project.stream import Streamed


class Project:
    r"""The pipelines of a warehouse, and what can be done with them.

    The command line is made from these methods: `tidegate backfill` is `backfill`, and `tidegate savepoints create` is
    `savepoints.create`. A method takes the pipeline's name first, and options by name, as Python values. It returns a
    frozen value with `to_dict()`, which notebooks show as tables. It raises the errors of `tidegate.pipelines.errors`,
    each with its `exit_code`, and prints nothing. An option that a message names, such as `--fill-gaps`, is the
    argument of that name, `fill_gaps`. Times without a zone are in the pipeline's `timezone`.

    Attributes:
        config: the settings.
        snapshots: list, show, diff and check snapshots.
        savepoints: create, list and delete savepoints.
        late: count, reopen and prune late rows.
        quality: check the tables, and acknowledge known bad windows.
        tables: vacuum and optimize the tables, rebuild table `windows`, return a query for it, and its lineage.
        driver: stop the driver of a pipeline, check that it is alive, or remove the lease of a dead one.
        source: reset the position in a source that was created again.

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

    config: Config
    snapshots: SnapshotMethods
    savepoints: SavepointMethods
    late: LateMethods
    quality: QualityMethods
    tables: TableMethods
    driver: DriverMethods
    source: SourceMethods

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
        self.config = _with_engine(config, engine, spark)
        told = progress if callable(progress) else ProgressLine() if progress else silent
        # Nothing here refers to the project itself, so its processes end as soon as nobody refers to it.
        self._teller = partial(_teller_of, told)
        here = (self.config, self._teller)
        self.snapshots, self.savepoints = SnapshotMethods(*here), SavepointMethods(*here)
        self.late, self.quality = LateMethods(*here), QualityMethods(*here)
        self.tables, self.driver, self.source = TableMethods(*here), DriverMethods(*here), SourceMethods(*here)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes that runs on the engine `local` left for the next run. The project can still be used.

        They also end with the program, when nothing refers to the project any longer, and after minutes without work.
        """
        self.config.processes.close()

    # Run

    def backfill(
        self,
        pipeline: str,
        start: Moment | None = None,
        end: Moment | None = None,
        *,
        slice: Slice | None = None,  # noqa: A002 - named like the option
        and_following: bool = False,
        fill_gaps: bool = False,
        again: bool = False,
        end_of_input: bool = False,
        patience: Seconds = 0.0,
    ) -> Backfilled:
        """Run a pipeline over event time from `start` to `end`, in one epoch for each slice.

        Each interval continues from the snapshot of the one before, so a session that crosses midnight is one session.
        An interval that was run before is skipped unless its rows or the code changed, or `again` is given.

        Args:
            pipeline: name of the pipeline.
            start: first event time, a date or date-time. Without a zone, it is in the pipeline's timezone.
            end: event time at which the backfill ends, exclusive.
            slice: length of each epoch's interval: 6h, 1d, 1w, 1mo. Days, weeks and months are those of the pipeline's
                timezone; None for one epoch.
            and_following: True to also rerun the later intervals after an interval that was rerun.
            fill_gaps: True to first run the intervals that are missing before `start`.
            again: True to run an interval again even if its rows and the code seem unchanged.
            end_of_input: True to end event time after the last interval, so that open windows fire and later elements
                are late.
            patience: seconds to wait for another running backfill; this one then continues where that one ended.

        Raises:
            UsageError: the times are missing or are not an interval.
            Refused: rows would be lost, a source does not exist, or a stream has taken over.
            LeaseHeld: another driver is running the pipeline.
        """
        from tidegate.pipelines.project.backfill import BackfillOptions, backfill

        span = _span(self.config, pipeline, start, end, slice, fill_gaps)
        options = BackfillOptions(and_following, again, end_of_input, patience)
        return backfill(self.config, pipeline, span, options, self._teller(pipeline))

    def plan(
        self,
        pipeline: str,
        start: Moment | None = None,
        end: Moment | None = None,
        *,
        slice: Slice | None = None,  # noqa: A002 - named like the option
        fill_gaps: bool = False,
        again: bool = False,
    ) -> BackfillPlan:
        """Return what a backfill would do with each interval. Nothing changes, and no engine starts.

        Args:
            pipeline: name of the pipeline.
            start: first event time, a date or date-time. Without a zone, it is in the pipeline's timezone.
            end: event time at which the backfill ends, exclusive.
            slice: length of each epoch's interval: 6h, 1d, 1w, 1mo; None for one epoch.
            fill_gaps: True to also plan the intervals that are missing before `start`.
            again: True to plan that each interval runs again even if its rows and the code seem unchanged.

        Raises:
            UsageError: the times are missing or are not an interval.
            Refused: a source does not exist or lacks a column.
        """
        from tidegate.pipelines.project.backfill import plan_backfill

        span = _span(self.config, pipeline, start, end, slice, fill_gaps)
        return plan_backfill(self.config, pipeline, span, again)

    def replay(self, pipeline: str, *, commits_per_epoch: Count | None = None) -> Replayed:
        """Replay the source's commits as a stream would have seen them, including late rows, and end as a backfill.

        Args:
            pipeline: name of the pipeline.
            commits_per_epoch: number of source commits in one epoch; None for all of them.

        Raises:
            Refused: the pipeline is a backfill in event order, or the log entry of a commit no longer exists.
        """
        from tidegate.pipelines.project.backfill import replay

        return replay(self.config, pipeline, commits_per_epoch, self._teller(pipeline))

    def stream(
        self,
        pipeline: str | Sequence[str],
        *,
        interval: Length | None = None,
        end_of_input: bool = False,
        restore: str | int = "latest",
        restore_from_timeline: Number | None = None,
        parallelism: Count | None = None,
        limits: EpochLimits | None = None,
        patience: Seconds = 0.0,
        stop: StopRequest | None = None,
    ) -> Streamed:
        """Run a pipeline as a stream, from its newest snapshot or from the one that `restore` names.

        After a backfill, the stream continues where the backfill ended. With `none` as the snapshot, it starts from
        scratch at the beginning of the source; its first epoch replaces everything that was published. Each epoch
        writes a line of JSON to WORK/logs/PIPELINE.epochs.jsonl. On the command line, SIGTERM, Ctrl-C and
        `driver stop` end the stream after the current epoch.

        Several pipelines run in one process with one engine, one epoch after the other, each with its own lease. If one
        fails, the others continue; the outcome has the failures, and `require()` raises them. The exit code of the
        command is that of the failure, or 1 if failures differ.

        Args:
            pipeline: name of the pipeline, or several names.
            interval: run until stopped, polling the source at this interval: 5s, 1min. None for one run that reads the
                commits that exist now, advances the clock and ends.
            end_of_input: True to end event time at the end, so that all windows fire; only without `interval`.
            restore: the snapshot to begin from: `latest`, an epoch, `savepoint:NAME`, or `none`.
            restore_from_timeline: restore only while the pipeline is on this timeline, so that a retry continues
                instead of restoring again.
            parallelism: number of shards; None for the pipeline's setting, or the number of cores.
            limits: limits on what one epoch reads.
            patience: seconds to wait for a running stream that ends on its own.
            stop: a request with which another thread or a signal handler ends the stream after the current epoch.

        Raises:
            UsageError: options contradict each other: `end_of_input` with `interval`, or `restore` with several
                pipelines.
            Refused: a source does not exist, or its rows changed and the pipeline does not correct them.
            LeaseHeld: another driver is running the pipeline.
        """
        from tidegate.pipelines.project.given import length_of
        from tidegate.pipelines.project.stream import StreamOptions, stream

        if end_of_input and interval is not None:
            raise UsageError("--end-of-input needs --available-now: a stream with --interval has no end")
        options = StreamOptions(
            None if interval is None else length_of(interval, "--interval"),
            end_of_input,
            str(restore),
            restore_from_timeline,
            parallelism,
            limits or EpochLimits(),
            patience,
        )
        names = (pipeline,) if isinstance(pipeline, str) else tuple(pipeline)
        return stream(self.config, names, options, stop or StopRequest(), self._teller)

    def restore(
        self,
        pipeline: str,
        target: str | int | None = None,
        *,
        keep_stale: bool = False,
        restart: bool = False,
        dry_run: bool = False,
        tables: bool = False,
        from_: str | None = None,
        at: str | None = None,
    ) -> Restored | Restart:
        """Make a snapshot the newest one. Results that were published after it are removed.

        The next run continues from this snapshot, at its position in the source. A restore to a snapshot of an
        abandoned lineage brings back the results of that lineage.

        If tables are damaged, a savepoint or `restart` replaces them. A restart names the tables, epochs and source
        versions before it removes anything, and changes nothing if the source no longer has all the rows that were
        read.

        With `from_`, the pipeline has no epochs yet. It gets a copy of what the other pipeline had published up to the
        snapshot, and continues from there with its own code; the other one does not change.

        Args:
            pipeline: name of the pipeline.
            target: `latest`, an epoch, or `savepoint:NAME`. With `from_` it may be missing, for `latest`; with
                `restart` it must be.
            keep_stale: True to keep results that were published after the snapshot, marked as stale.
            restart: True to remove all tables instead, so that the next run computes everything again from the source.
            dry_run: True to show what a restart would remove and rebuild, and change nothing.
            tables: True to replace all tables by those of the savepoint, which was created with its tables.
            from_: name of another pipeline from whose snapshot this one begins.
            at: folder or URI of the savepoint; None for the warehouse.

        Raises:
            Refused: rows that belong to the snapshot are lost, or the source no longer has all rows for a restart.
            LeaseHeld: a driver is running the pipeline.
        """
        if restart:
            if target is not None or keep_stale or tables or from_ is not None or at is not None:
                raise UsageError("--restart removes all tables: leave out TARGET and the other options")
            from tidegate.pipelines.project.restart import restart as run

            return run(self.config, pipeline, dry_run, self._teller(pipeline))
        if dry_run:
            raise UsageError("--dry-run: only with --restart")
        if (from_ is not None or tables) and keep_stale:
            raise UsageError("--from and --tables bring all tables: leave out the other options")
        if from_ is not None:
            from tidegate.pipelines.project.restore_from import restore_from

            return restore_from(self.config, pipeline, from_, "latest" if target is None else str(target), at)
        if target is None:
            raise UsageError("name the snapshot to restore: latest, an epoch, or savepoint:NAME; or give --restart")
        if tables:
            from tidegate.pipelines.project.restore_from import replace_tables

            return replace_tables(self.config, pipeline, str(target), at)
        from tidegate.pipelines.project.snapshots import restore

        return restore(self.config, pipeline, str(target), at, keep_stale)

    def forget(
        self,
        pipeline: str,
        key: KeyGiven | None = None,
        *,
        keys: Iterable[KeyGiven] | None = None,
        where: str | None = None,
        dry_run: bool = False,
    ) -> Erased:
        r"""Erase keys from all tables and savepoints of a pipeline, in one epoch.

        The tables are state, results, windows, late and rejects. Older snapshots are removed too, because they may hold
        the keys. If nothing ever held a key, nothing changes. Erase the rows from the source yourself: a backfill would
        read any remaining rows again. With `where`, list the keys with `dry_run` before you do that, because the
        source's rows tell which keys belong to a person.

        Give one of `key`, `keys` and `where`.

        Args:
            pipeline: name of the pipeline.
            key: values of the key columns, in order.
            keys: several keys.
            where: a condition on columns of the tables or the source, such as user_id = 7. It selects the keys whose
                rows all meet it; keys that also have other rows are listed as shared, and stay.
            dry_run: True to show the keys that `where` selects, and change nothing.

        Raises:
            UsageError: not exactly one of the three is given, a value is not a key, or no table has the columns of
                `where`.
        """
        from tidegate.pipelines.project.forget import forget, selected_keys

        if sum(given is not None for given in (key, keys, where)) != 1:
            raise UsageError("give one of key, keys and where")
        if dry_run:
            if where is None:
                raise UsageError("--dry-run shows the keys that --where selects: give --where")
            return selected_keys(self.config, pipeline, where)
        named = [key] if key is not None else [] if keys is None else list(keys)
        return forget(self.config, pipeline, [key_text(each) or () for each in named], where)

    # Read

    def list(self) -> Pipelines:
        """Return all pipelines of the project: mode, watermark, lag and last check of each. Starts no engine."""
        from tidegate.pipelines.project.listing import list_pipelines

        return list_pipelines(self.config, datetime.now(UTC))

    def results(
        self,
        pipeline: str,
        *,
        view: View = "final",
        where: str | None = None,
        limit: Number | None = None,
        sort: str | None = None,
        local: str | None = None,
    ) -> Results:
        """Return the windows of a pipeline, or the results of its process function or join, newest first.

        Args:
            pipeline: name of the pipeline.
            view: `final` for windows that can no longer change, `latest` for the newest result of each window,
                `windows` for table windows, `all` for every pane.
            where: only rows that satisfy a condition in Spark SQL on the columns of the view, such as
                "clicks > 3 AND user = 'ann'"; times without a zone are in UTC.
            limit: largest number of rows; None for all.
            sort: column to sort by, largest first; None for the end of the windows, or event time.
            local: zone of the times, such as Europe/Berlin; the rows then have a column with the local date on which
                each window begins.

        Raises:
            UsageError: there is no such column or zone, or `where` can't be evaluated.
            Refused: the pipeline has no snapshot yet.
        """
        from tidegate.pipelines.project.results import results

        return results(self.config, pipeline, view, where, limit, sort, local)

    def runs(self, pipeline: str, *, limit: Number | None = 20, stale: bool = False) -> Runs:
        """Return the epochs of a pipeline, newest first: their events, results and durations.

        Args:
            pipeline: name of the pipeline.
            limit: largest number of epochs; None for all.
            stale: True to also return epochs whose results were replaced.
        """
        from tidegate.pipelines.project.listing import runs

        return runs(self.config, pipeline, limit, stale)

    def report(
        self,
        pipeline: str,
        *,
        epoch: int | None = None,
        key: KeyGiven | None = None,
        window: Moment | None = None,
        to: Path | None = None,
    ) -> Report:
        """Write the report of a run as one self-contained HTML page.

        Args:
            pipeline: name of the pipeline.
            epoch: epoch of the run; None for the newest.
            key: the key whose windows the timeline shows: the values of its columns; None for the busiest key.
            window: start of a window of that key to draw: its rows, watermark, merges and panes.
            to: file to write; None for a file among the artifacts.
        """
        from tidegate.pipelines.project.listing import report

        texts = key_text(key)
        named = None if texts is None else "/".join(texts)
        starts = millis_of(window, "--window", self.config.entry(pipeline).clock)
        return report(self.config, pipeline, epoch, named, to, starts)

    # Ask

    def why(self, pipeline: str, *, key: KeyGiven | None = None, limit: Number | None = 10) -> Why:
        """Return why windows have not fired: what each one waits for, and which source partition holds event time back.

        Args:
            pipeline: name of the pipeline.
            key: only windows of this key: the values of its columns.
            limit: largest number of windows; None for all.
        """
        from tidegate.pipelines.ask.why import why

        return why(self.config, pipeline, key_text(key), limit)

    def trace(
        self,
        pipeline: str,
        key: KeyGiven = (),
        *,
        window: Moment | None = None,
        limit: Number | None = 100,
        page: bool = False,
        to: Path | None = None,
    ) -> Trace:
        """Return what happened to a key: its rows, their watermarks, windows, panes and late rows, in order.

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

        starts = millis_of(window, "--window", self.config.entry(pipeline).clock)
        return trace(self.config, pipeline, key_text(key) or (), starts, page, to, limit)

    def verify(
        self,
        pipeline: str,
        *,
        sample: float | str = "1%",
        seed: Number | None = None,
        new: bool = False,
        budget: float | str | None = None,
    ) -> Verified:
        """Recompute windows from the source, and compare them with what is published.

        All windows of the sampled keys are recomputed by a plain implementation of the rules, without the operators.
        The state and the late rows of these keys are compared too. All late rows, epochs and retained manifests are
        checked against each other. If something differs, `require()` of the outcome raises an error, and the command
        ends with exit code 5.

        Args:
            pipeline: name of the pipeline.
            sample: share of the keys to sample: a number above 0 and at most 1, a string such as 1%, or all.
            seed: seed of the sample; None for the newest epoch, so each epoch has a different sample.
            new: True to verify only what was published since the newest such verification that found no difference.
            budget: verify one of the newest epochs, and only if the last such verification took at most this share of
                the time of the epochs since then, such as 2%.
        """
        from tidegate.pipelines.ask.verify import verify
        from tidegate.pipelines.project.given import share_of

        if new and budget is not None:
            raise UsageError("--new verifies all new epochs, and --budget one of them: give one of the two")
        allowed = None if budget is None else share_of(budget, "--budget")
        return verify(self.config, pipeline, share_of(sample, "--sample"), seed, new, allowed)

    def explain(self, pipeline: str) -> Explained:
        """Check a pipeline, and return how it runs: the operator, why it was chosen, and the steps of an epoch.

        Errors that would end a run are found without Spark where possible: missing columns and functions, conditions
        that are not boolean, types that don't fit.

        Raises:
            Refused: a column is missing or has an unsuitable type, or an expression is faulty.
        """
        from tidegate.pipelines.ask.explain import explain

        return explain(self.config, pipeline)

    def compare(self, pipeline: str, other: str, *, rows: Number | None = 20) -> Comparison:
        """Return in which windows another pipeline differs from a pipeline, by how much, and why.

        If one of them was restored from the other, only windows that changed since then are compared.

        Args:
            pipeline: name of the pipeline.
            other: name of the other pipeline, which has the same key columns.
            rows: largest number of windows; None for all.

        Raises:
            Refused: their results can't be compared.
        """
        from tidegate.pipelines.ask.compare import compare

        return compare(self.config, pipeline, other, rows)

    def advise(
        self,
        pipeline: str,
        *,
        bound: Iterable[Length] = (),
        lateness: Iterable[Length] = (),
        idleness: Iterable[Length] = (),
        gap: Iterable[Length] = (),
        from_version: Number = 0,
        page: bool = False,
        to: Path | None = None,
    ) -> Advice:
        """Return what other bounds, lateness, idle timeouts and gaps would have done to the rows of the source.

        The rows are read as a stream would read them from the beginning, but no epoch runs. The numbers of late rows
        are exact. Without values, some are chosen from the rows.

        Args:
            pipeline: name of the pipeline.
            bound: bounds on out-of-orderness to evaluate, such as 10min; with other fields, every combination.
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
        return advise(self.config, pipeline, values, from_version, page, to)

    def size(self, pipeline: str, *, rows: Count = 2_000_000, memory: int | str | None = None) -> Sized:
        """Return the time, memory and bytes that epochs of the pipeline would need, and what to set.

        The numbers are predicted from the source's log, a sample of its newest rows, and costs that a benchmark
        measured. No epoch runs, and no engine starts.

        Args:
            pipeline: name of the pipeline.
            rows: number of rows to sample.
            memory: memory for the processes of an epoch, such as 8g; None for the memory of this machine.

        Raises:
            Refused: a source does not exist, or its rows can't be read without Spark.
        """
        from tidegate.pipelines.ask.size import size
        from tidegate.pipelines.project.given import size_of

        return size(self.config, pipeline, rows, size_of(memory, "--memory"))


def _teller_of(progress: OnProgress, pipeline: str) -> Teller:
    return Teller(pipeline, progress)


def _with_engine(config: Config, engine: EngineName | None, spark: Session | None) -> Config:
    """Return the settings with the engine that the caller chose."""
    if engine not in (None, *get_args(EngineName)):
        raise UsageError(f"engine {engine!r}: give {' or '.join(get_args(EngineName))}")
    from tidegate.pipelines.engine.processes import Processes

    config = config.model_copy(update={"processes": Processes(), "engine": engine or config.engine})
    if spark is None:
        return config
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
    slice_: Slice | None,
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
