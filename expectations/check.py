"""The check of a pipeline as of an epoch against its suites, and the acknowledgement of known bad windows.

Rows of tables `late` and `rejects`, and of the source, belong to no window, so no correction can fix a bad one.
Therefore each is checked once, by the first check after its epoch, whether the previous check passed or failed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar, Self

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.expectations.changed import Changed, Mark, changed_partitions
from tidegate.expectations.neighbours import NewWindows
from tidegate.expectations.pinned import Pinned, pin
from tidegate.expectations.run import QualityRun, run_suites
from tidegate.expectations.suites import TableSuite, check_suite, own_suite, suites, windows_suite
from tidegate.expectations.unexpected_rows import matches
from tidegate.pipelines.definition import windows
from tidegate.pipelines.definition.config import Config, PartitionUnit
from tidegate.pipelines.definition.config.opened import artifacts_of
from tidegate.pipelines.definition.event_columns import FIRST_TIME, LAST_TIME
from tidegate.pipelines.definition.load import load_pipeline
from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.engine.local import LocalEngine
from tidegate.pipelines.epoch.file_slices import of_added, of_version
from tidegate.pipelines.epoch.open_input import OpenInput
from tidegate.pipelines.errors import QualityFailed, Refused, UsageError
from tidegate.pipelines.ledger.host import system_clock
from tidegate.pipelines.ledger.tables import quality
from tidegate.pipelines.ledger.tables import quality as outcomes
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.observe.report.answer import Facts
from tidegate.pipelines.observe.report.columns import (
    COUNT,
    DATE_TIME,
    NUMBER,
    OBJECT,
    TEXT,
    WATERMARK,
    YES_NO,
    Column,
    Columns,
    Table,
)
from tidegate.pipelines.remedy import Act, Remedy
from tidegate.pipelines.rendering import spelled
from tidegate.pipelines.run.work_folder import DAY, clean
from tidegate.pipelines.sources.file_slice import FileSlice
from tidegate.pipelines.storage.artifacts import docs_folder
from tidegate.pipelines.storage.warehouse import arrow_schema
from tidegate.windowing.time import to_millis

_QUOTED = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"")
"""Strings and quoted names in SQL."""
_UNSTABLE = re.compile(
    r"\b(?:select\b|(?:now|random|uuid|today)\s*\(|current_(?:date|time|timestamp)\b|localtime(?:stamp)?\b)",
    re.IGNORECASE,
)
"""Expressions that a condition may not have, because each check evaluates it again: they depend on other windows or on
the current time.
"""


WINDOWS = windows.NAME
"""Name of the suite for the rows of table `windows`."""
_ROWS_OF = {"rejects": "rejected"}
"""Name of a suite's rows if it differs from the suite's name."""


_OF_SNAPSHOT = {
    "pipeline": TEXT,
    "timeline": NUMBER,
    "epoch": NUMBER,
    "snapshot_version": NUMBER,
    "versions": OBJECT,
    "since": NUMBER,
    "interval": OBJECT,
    "watermark": WATERMARK,
    "counters": OBJECT,
}
_OF_CHECK = {
    "check_id": TEXT,
    "checked_at": DATE_TIME,
    "timeline": NUMBER,
    "epoch": NUMBER,
    "about": TEXT,
    "rows": COUNT,
    "results_version": NUMBER,
    "state_version": NUMBER,
    "expectation_id": TEXT,
    "columns": TEXT,
    "limits": TEXT,
    "description": TEXT,
    "failing": COUNT,
    "observed_number": OBJECT,
    "examples": OBJECT,
}


def _of_snapshot(name: str) -> Callable[[Quality], object]:
    def value(answer: Quality) -> object:
        pinned = answer.pinned
        own = {"snapshot_version": pinned.versions["state"], "versions": dict(pinned.versions), "since": pinned.since}
        own |= {"interval": pinned.interval}
        return own[name] if name in own else getattr(pinned.manifest, name)

    return value


@dataclass(frozen=True, slots=True)
class Quality(Facts):
    """The outcome of a check. The changed partitions are None if they were not requested or all are held back."""

    pinned: Pinned
    run: QualityRun
    changed: Changed | None
    report: str | None

    facts: ClassVar[Columns] = (
        *(Column(name, unit, value=_of_snapshot(name)) for name, unit in _OF_SNAPSHOT.items()),
        Column("windows", COUNT, value=lambda it: it.pinned.fresh_windows),
        Column("looked_from", NUMBER, value=lambda it: it.pinned.scope.proof and it.pinned.scope.proof.epoch),
        Column("check_id", TEXT, value=lambda it: it.run.checks[0].check_id if it.run.checks else None),
        Column("quality", TEXT, value=lambda it: it.run.state),
        Column("expectations", OBJECT, value=lambda it: it.counts),
        Column("success", YES_NO),
        Column("partitions", OBJECT, value=lambda it: None if it.changed is None else it.changed.to_dict()),
        Column("docs", TEXT, value=lambda it: it.run.docs),
        Column("validation_result", TEXT, value=lambda it: it.run.validation_result),
        Column("report", TEXT),
    )
    holds: ClassVar[Mapping[str, Columns]] = {
        "checks": (
            Column("success", YES_NO, text=lambda check: "holds" if check.success else "FAILS"),
            Column("severity", TEXT),
            Column("suite", TEXT, "rows of", text=lambda check: check.suite),
            Column("expectation", TEXT, text=lambda check: f"{check.expectation}{check.subject}"),
            Column("observed", TEXT),
            *(Column(name, unit, "") for name, unit in _OF_CHECK.items()),
            Column("proof", YES_NO, "", value=lambda check: check.proof is not None),
        ),
        "acknowledged": (Column("epoch", NUMBER), Column("where", TEXT), Column("reason", TEXT)),
    }

    @property
    def counts(self) -> dict[str, int]:
        """The numbers of expectations that were checked and that hold."""
        checks, failed = len(self.run.checks), len(self.run.failed)
        return {"checked": checks, "hold": checks - failed}

    @property
    def success(self) -> bool:
        """True if every critical expectation passed."""
        return not self.run.is_critical

    def require(self) -> Self:
        """Return this outcome; raise QualityFailed if a critical expectation failed."""
        if self.success:
            return self
        held = "" if self.changed is None else f"; partitions that may be read: {self.changed}"
        run = self.run
        raise QualityFailed(f"{run.pipeline}, epoch {run.epoch}: {run.failures}; see {run.docs}{held}")

    def tables(self) -> Iterator[Table]:
        run = self.run
        # The failed ones come first, and only these are shown.
        checks, failed = sorted(run.checks, key=lambda check: check.success), len(run.failed)
        yield Table("checks", self.holds["checks"], checks, "expectations that fail", failed, is_shown=failed > 0)
        acknowledged = [
            {"epoch": number, "where": where, "reason": reason} for number, where, reason in self.pinned.acknowledged
        ]
        yield Table("acknowledged", self.holds["acknowledged"], acknowledged, is_shown=False)

    def lines(self) -> Iterator[str]:
        run, pinned = self.run, self.pinned
        since = "" if pinned.since is None else f" since epoch {pinned.since}"
        what = "results" if pinned.shape is None else "windows"
        yield (
            f"{run.pipeline}, epoch {run.epoch}: {pinned.fresh_windows} {what} became final{since}, {run.state}; "
            f"{self.counts['hold']} of {self.counts['checked']} expectations hold"
        )

    def remarks(self) -> Iterator[str]:
        run, pinned = self.run, self.pinned
        if run.failed and pinned.shape is not None and pinned.shape.is_event_time:
            trace = Remedy(Act.TRACE_WINDOW, run.pipeline, key=None if pinned.key else ())
            yield f"{spelled(trace)} shows how a window was computed"
        if self.changed is not None:
            yield f"changed partitions: {self.changed}"
        yield f"Data Docs: {run.docs}"
        if self.report is not None:
            yield f"Run report: {self.report}"


@dataclass(frozen=True, slots=True)
class Acknowledged(Facts):
    """Windows that are exempt from the pipeline's own suite."""

    pipeline: str
    epoch: int
    where: str
    reason: str
    windows: int

    facts: ClassVar[Columns] = (
        Column("pipeline", TEXT),
        Column("epoch", NUMBER),
        Column("where", TEXT),
        Column("reason", TEXT),
        Column("windows", COUNT),
    )
    says: ClassVar[str] = "{windows} windows of {pipeline} are acknowledged as of epoch {epoch}: checks skip them"


def check(
    config: Config,
    pipeline: str,
    epoch: int | None,
    everything: bool,
    unit: PartitionUnit | None,
    since: str | None,
    with_report: bool,
) -> Quality:
    """Check the tables of a pipeline as of an epoch, write table `quality` and Data Docs, and return the outcome.

    `everything` checks every current window, and reads every file. `unit` is the length of the partitions whose changes
    are returned. Only changes since `since` count, which is the `mark` of an earlier outcome as JSON.

    Raises:
        UsageError: the suite is faulty.
        Refused: the pipeline has no such epoch.
    """
    tables, value = PipelineTables.of(config, pipeline), load_pipeline(config, pipeline)
    folder = config.work_folder / docs_folder(pipeline)
    folder.mkdir(parents=True, exist_ok=True)
    loaded = [*_suites_of_windows(config, pipeline)]
    pinned = pin(tables, value, epoch, folder, everything=everything)
    for name, field, suite, _ in loaded:
        check_suite(suite, field, pinned.slices.schema, name.removeprefix("new "))
    of_others = [*_suites_of_other_tables(config, pinned, value)]
    entry = config.entry(pipeline)
    partitions: PartitionUnit = "day" if entry.asset_partitions == "none" else entry.asset_partitions
    of_windows = [
        windows_suite(name, suite, NewWindows(pinned, partitions, shown, entry.windows.early))
        for name, _, suite, shown in loaded
    ]
    run = run_suites(suites(pinned, *of_others, *of_windows), pinned, tables, artifacts_of(config))
    now = system_clock()
    outcomes.tidy(tables, now - config.entry(pipeline).retain_history_days * DAY)
    clean(config, now)
    changed = _changed(config, pinned, run, unit, None if since is None else Mark.parse(since))
    report = None
    if with_report:
        from tidegate.pipelines.observe.report.page import write_report
        from tidegate.pipelines.observe.report.run import read_run

        report = write_report(config, pipeline, read_run(tables, run.epoch))
    return Quality(pinned, run, changed, report)


def acknowledge(config: Config, pipeline: str, where: str, reason: str) -> Acknowledged:
    """Let known bad windows pass the pipeline's own suite from now on.

    Raises:
        UsageError: the reason is missing, no window satisfies the condition, or its result could differ in another
            check.
    """
    if not reason.strip():
        raise UsageError("--reason is empty: say why these windows may pass, for later readers")
    if found := _UNSTABLE.search(_QUOTED.sub("''", where)):
        raise UsageError(
            f"--where {where!r}: {found[0].strip('( ')!r} may give a different result in the next check, which could "
            f"then skip windows that nobody has reviewed. Compare columns of a window with constants"
        )
    tables = PipelineTables.of(config, pipeline)
    # Most bad windows are new. Only `quality check --all` reads the older ones, and there may be very many of those.
    for everything in (False, True):
        pinned = pin(tables, load_pipeline(config, pipeline), everything=everything)
        fresh = pinned.fresh
        if count := int(matches(where, fresh).sum()) if len(fresh) else 0:
            break
    else:
        raise UsageError(
            f"--where {where!r}: none of the {len(fresh)} final windows of {pipeline} that are not acknowledged yet "
            "satisfies it",
            Remedy(Act.CHECK_ALL, pipeline),
        )
    outcomes.acknowledge(tables, pinned.manifest, where, reason, count, datetime.now(UTC))
    return Acknowledged(pipeline, pinned.manifest.epoch, where, reason, count)


def _suites_of_windows(config: Config, pipeline: str) -> Iterator[tuple[str, str, Any, bool]]:
    """Yield the pipeline's suites over windows: name of the rows, field, suite, and True if it sees shown windows."""
    entry = config.entry(pipeline)
    for name, field, path, shown in (
        ("new final windows", f"suites.{FINAL}", entry.suites.final, False),
        ("new rows of table windows", f"suites.{WINDOWS}", entry.suites.windows, True),
    ):
        if path is not None:
            full = f"pipelines.{pipeline}.{field}"
            yield name, f"{full} = {path!r}", config.load(path, full), shown


def _suites_of_other_tables(config: Config, pinned: Pinned, pipeline: Pipeline) -> Iterator[TableSuite]:
    """Yield the suites for rows other than final windows, for each table that has new rows."""
    for kind, path in config.entry(pipeline.name).suites:
        if path is None or kind in (FINAL, WINDOWS):
            continue
        field, what = f"pipelines.{pipeline.name}.suites.{kind}", f"new {_ROWS_OF.get(kind, kind)} rows"
        suite = config.load(path, field)
        rows = rows_since(pinned, pipeline, kind)
        check_suite(suite, f"{field} = {path!r}", rows.schema, what)
        if len(rows):
            yield own_suite(what, suite, rows)


def _changed(
    config: Config, pinned: Pinned, run: QualityRun, unit: PartitionUnit | None, readers_know: Mark | None
) -> Changed | None:
    """Return the changed partitions to announce. A failed check holds back all of them, or those with bad windows."""
    entry = config.entry(run.pipeline)
    by_partition = entry.hold == "partitions" and run.names_windows
    if unit is None or (run.is_critical and not by_partition):
        return None
    changed = changed_partitions(pinned, unit, readers_know, run.failing, entry.timezone)
    # If there are too many partitions to name, they can't be held back individually.
    return changed if changed.are_few or not run.is_critical else None


FINAL = "final"
"""Name of the final windows in `[pipelines.NAME.suites]`."""

SOURCE = "source"
"""Name of the source's rows there. The other names are table names."""


def rows_since(pinned: Pinned, pipeline: Pipeline, kind: str) -> pa.Table:
    """Return the rows of a kind that were added since the newest epoch checked before, or all if there is none.

    Raises:
        UsageError: the source's rows can't be read without Spark, or the pipeline has two sources.
        Refused: a version of the source can no longer be read.
    """
    epochs = pinned.scope.pinned.epochs
    earlier = epochs.filter(pc.less(epochs["epoch"], pinned.manifest.epoch))["epoch"].to_pylist()
    since = quality.newest_of_checked(pinned.tables, earlier)
    if kind == SOURCE:
        return _source_rows(pinned, pipeline, since)
    handle, scope = pinned.scope.pinned.handles[kind], pinned.scope
    where = scope.pinned.current & (pc.field("epoch") > (0 if since is None else since))
    names, schema = [file["path"] for file in scope.files_of(kind)], arrow_schema(handle)
    batches = pinned.tables.warehouse.read_batches(pinned.tables.path(kind), names, schema, where=where)
    return pa.Table.from_batches(batches, schema)


def _source_rows(pinned: Pinned, pipeline: Pipeline, since: int | None) -> pa.Table:
    """Return the rows of the only source that the epochs after one read, with the source's columns.

    A backfill reads the rows of its interval, and a stream those of commits; rows that `where` drops are included.
    """
    field = f"pipelines.{pipeline.name}.suites.source"
    if len(pipeline.inputs) > 1:
        raise UsageError(f"{field}: {pipeline.name} has two sources; leave it out")
    try:
        source = OpenInput.open(LocalEngine(cores=1), pinned.tables, pipeline)
    except Refused as error:
        raise UsageError(f"{field}: a check reads the source without Spark: {error}") from error
    slices = _slices_since(source, pinned.scope.pinned.epochs.sort_by("epoch").to_pylist(), since)
    schema = source.columns.schema
    return pa.concat_tables([schema.empty_table(), *(rows for each in slices for rows in _rows_of(each, schema))])


def _slices_since(source: OpenInput, epochs: list[dict[str, Any]], since: int | None) -> list[FileSlice]:
    """Return what the epochs after one read: of a backfill, and of a stream's first epoch, the rows of times."""
    read, slices, frontier = -1, list[FileSlice](), None
    for row in epochs:
        version, interval = row["source_version"], (row["interval_start"], row["interval_end"])
        is_new, is_backfill = since is None or row["epoch"] > since, interval[0] is not None
        if is_new and is_backfill:
            slices.append(of_version(source, version, None, *map(to_millis, interval)))
        elif is_new and frontier is not None and row["kind"] == "stream":
            slices.append(of_version(source, version, None, frontier))
        elif is_new and version is not None and version > read:
            slices.append(of_added(source, [each for each in source.commits(read, version) if not each.changes]))
        if is_backfill or row["kind"] == "stream":
            frontier = to_millis(interval[1]) if is_backfill else None
        read = read if version is None else version
    return slices


def _rows_of(files: FileSlice, schema: pa.Schema) -> list[pa.Table]:
    found = []
    for number, part in enumerate(files.parts):
        table = files.table_of(number)
        columns = table.columns
        for rows, _ in table.stored(part, schema.names):
            kept = rows.cast(schema)
            if (part.since, part.until) != (FIRST_TIME, LAST_TIME):
                derived = columns.derive(rows, [columns.timestamp])
                times, _ = columns.millis(derived[columns.timestamp])
                kept = kept.filter(pa.array((times >= part.since) & (times < part.until)))
            found.append(kept)
    return found
