"""Table `quality`: the outcome of every expectation in every check, for users who query trends.

Each check is one commit. It needs no lease, because no epoch depends on this table. About every twentieth check
combines the small files and removes outcomes that are too old.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.transaction import RemoveAction

from tidegate.pipelines.definition.columns import TIMESTAMP, column
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.ledger.tables.commits import Outrun, commit
from tidegate.pipelines.ledger.tables.files import add_action, remove_action, statistics, write_rows
from tidegate.pipelines.ledger.tables.keys import KeyTexts, names_key, names_part
from tidegate.pipelines.ledger.tables.pipeline_tables import QUALITY, PipelineTables
from tidegate.pipelines.ledger.tables.table_log import leave_newest
from tidegate.pipelines.storage.delta_log import FOLDER, actions_in
from tidegate.pipelines.storage.warehouse import active_files, arrow_schema, read_table
from tidegate.windowing.time import Millis, from_millis

NAME = QUALITY

_ENOUGH = 20
"""Number of files from which `tidy` combines them."""

_ATTEMPTS = 50
"""Number of attempts to commit while other checks commit too."""

_DESCRIBED = ("timeline", "epoch", "checked_at", "number")
"""Columns with bounds in the log, from which readers find the newest check."""

EXAMPLES = pa.list_(pa.struct([("key", pa.string()), ("window", pa.string()), ("value", pa.string())]))

MOST_EXAMPLES = 20
"""Largest number of failing rows that an outcome shows."""

ACKNOWLEDGED = "acknowledged"
"""Value of `suite` in a row that is not an outcome: somebody acknowledged windows, with `where` and `reason` as JSON in
`observed`, where `forget` finds keys that they name."""

VERIFIED = "verified"
"""Value of `suite` in another row that is not an outcome: its windows were verified as of this epoch."""

_SAMPLED = "sampled epoch"
"""Value of `about` in the row of a verification if only one epoch was verified."""

_BESIDE_CHECKS = [ACKNOWLEDGED, VERIFIED]

SCHEMA = pa.schema(
    [
        column("check_id", pa.string(), "one id for each check of all suites", False),
        column("checked_at", TIMESTAMP, "when it was checked", False),
        column("timeline", pa.int64(), "timeline of the epoch", False),
        column("epoch", pa.int64(), "the epoch whose snapshot was checked, with all rows up to it", False),
        column("suite", pa.string(), "the rows that it checks", False),
        column("expectation", pa.string(), "type of the expectation", False),
        column("about", pa.string(), "the columns or limits that it was given", False),
        column("severity", pa.string(), "critical, warning or info", False),
        column("success", pa.bool_(), "whether it holds", False),
        column("observed", pa.string(), "what was observed", False),
        column("rows", pa.int64(), "how many rows were checked", False),
        column("results_version", pa.int64(), "version of table results that was read", False),
        column("state_version", pa.int64(), "version of table state", False),
        column("proof", pa.string(), "JSON: what the next check continues from; null if this one found an error"),
        column("expectation_id", pa.string(), "the same in every check; distinguishes two expectations of one type"),
        column("columns", pa.string(), "the columns it is about"),
        column("limits", pa.string(), "its limits, sets and other parameters"),
        column("description", pa.string(), "what it requires, in the words of the suite"),
        column("failing", pa.int64(), "how many rows break it; null if it is not about individual rows"),
        column("observed_number", pa.float64(), "the observed value, if it is a number and not about individual rows"),
        column("examples", EXAMPLES, "up to 20 of the rows that break it: key, window and values as text"),
        column("number", pa.int64(), "number of the commit that stored it: larger is newer, regardless of clocks"),
    ]
)


@dataclass(frozen=True, slots=True)
class Example:
    """A row that breaks an expectation: its key, window and relevant values as text, each empty if there is none."""

    key: str
    window: str
    value: str

    def __str__(self) -> str:
        return f"[{', '.join(filter(None, (self.key, self.window, self.value)))}]"


@dataclass(frozen=True, slots=True)
class QualityRow:
    """Outcome of one expectation in one check. `SCHEMA` describes each field."""

    check_id: str
    checked_at: datetime
    timeline: int
    epoch: int
    suite: str
    expectation: str
    about: str
    severity: str
    success: bool
    observed: str
    rows: int
    results_version: int
    state_version: int
    proof: str | None = None
    expectation_id: str | None = None
    columns: str | None = None
    limits: str | None = None
    description: str | None = None
    failing: int | None = None
    observed_number: float | None = None
    examples: tuple[Example, ...] | None = None

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> QualityRow:
        """Return a row of the table, which may be older and have fewer columns, or of a check's JSON."""
        given = {field.name: row[field.name] for field in fields(cls) if field.name in row}
        examples = row.get("examples")
        return cls(**given | {"examples": None if examples is None else tuple(Example(**each) for each in examples)})

    @property
    def subject(self) -> str:
        """Return columns and limits as shown after the expectation's type, or "" if there are none."""
        if self.columns is None:
            return f" ({self.about})" if self.about else ""
        of = f" of {self.columns}" if self.columns else ""
        return f"{of} ({self.limits})" if self.limits else of

    @property
    def message(self) -> str:
        """Return the whole outcome in one line: rows, expectation, limits, severity, description, count, examples."""
        said = f' "{self.description}"' if self.description else ""
        examples = f": {', '.join(map(str, self.examples))}" if self.examples else ""
        return f"{self.suite}: {self.expectation}{self.subject}, {self.severity}{said}: {self.observed}{examples}"


def append(tables: PipelineTables, rows: Sequence[QualityRow], check: Callable[[], None] = lambda: None) -> None:
    """Add the rows of one check, in one commit.

    `check` raises an error if the rows may contain a key that was forgotten since their tables were read; the commit
    fails if `forget_examples` commits after it.
    """
    tables.create_one(NAME, SCHEMA, {})
    outcomes = [asdict(row) for row in rows]

    def change(handle: DeltaTable) -> tuple[pa.Table, list[RemoveAction]]:
        check()
        number = handle.version() + 1
        return pa.Table.from_pylist([{**row, "number": number} for row in outcomes], schema=SCHEMA), []

    # The table of an older tidegate has fewer columns. Another check may add them at the same time.
    with suppress(Outrun):
        tables.widen({NAME: SCHEMA})
    commit_change(tables, change)


Change: TypeAlias = Callable[[DeltaTable], tuple[pa.Table, list[RemoveAction]]]
"""Returns the rows to add to a version of the table, and the files to remove from it."""


def commit_change(tables: PipelineTables, change: Change) -> int:
    """Commit a change that is derived from the newest version, retrying after other commits. Return the new version.

    Raises:
        Refused: other commits to the table keep interfering.
    """
    path = tables.path(NAME)
    for _ in range(_ATTEMPTS):
        handle = tables.open(NAME)
        version = handle.version() + 1
        added, removes = change(handle)
        files = write_rows(tables.warehouse, path, f"{NAME}-rows", added)
        stats = json.dumps(statistics(added, _DESCRIBED))
        adds = [add_action(file.model_copy(update={"stats": stats})) for file in files]
        try:
            commit(tables.warehouse, handle, [*adds, *removes], {})
        except Outrun:
            for file in files:
                tables.warehouse.delete_file(path, file.path)
            continue
        return version
    raise Refused(
        f"other checks of {tables.pipeline} commit to table {path} whenever this command tries to: run it again"
    )


def tidy(tables: PipelineTables, oldest: Millis) -> bool:
    """Combine the files if there are many, dropping checks that are too old. Return False if nothing was done.

    The newest check and the newest passed check are kept, because the next check continues from them.
    """
    if len(active_files(tables.open(NAME))) < _ENOUGH:
        return False

    def change(handle: DeltaTable) -> tuple[pa.Table, list[RemoveAction]]:
        kept = _without_old(read_table(tables.warehouse, handle), oldest)
        return kept.sort_by("checked_at"), [remove_action(file) for file in active_files(handle)]

    commit_change(tables, change)
    tables.open(NAME).vacuum(dry_run=False, full=True)
    return True


def _without_old(rows: pa.Table, oldest: Millis) -> pa.Table:
    young = pc.greater_equal(rows["checked_at"], pa.scalar(from_millis(oldest)).cast(TIMESTAMP))
    checks = rows.filter(~pc.field("suite").isin(_BESIDE_CHECKS))
    needed = [check for check in (_newest_check(checks), _newest_passed_check(checks)) if check is not None]
    verified = rows.filter(pc.equal(rows["suite"], VERIFIED))
    needed += [check for check in (_newest_passed_check(verified),) if check is not None]
    is_needed = pc.is_in(rows["check_id"], value_set=pa.array(needed, pa.string()))
    return rows.filter(pc.or_(pc.or_(young, is_needed), pc.equal(rows["suite"], ACKNOWLEDGED)))


def acknowledge(
    tables: PipelineTables, manifest: Manifest, where: str, reason: str, windows: int, now: datetime
) -> None:
    """Record that a user acknowledged the windows that satisfy a condition, as of a manifest's epoch."""
    observed = json.dumps({"where": where, "reason": reason}, ensure_ascii=False)
    outcome = {"expectation": "acknowledge", "severity": "info", "success": True, "observed": observed}
    _append_concurrently(tables, manifest, suite=ACKNOWLEDGED, checked_at=now, about="", rows=windows, **outcome)


def keep_verification(
    tables: PipelineTables, manifest: Manifest, success: bool, observed: str, windows: int, seconds: float | None
) -> None:
    """Record that the results up to a manifest's epoch were verified.

    `seconds` is the processor time if only a sampled epoch was verified.
    """
    now, about = datetime.now(UTC), "" if seconds is None else _SAMPLED
    outcome = {"expectation": "verify", "severity": "critical", "success": success, "observed": observed}
    outcome |= {"observed_number": seconds}
    _append_concurrently(tables, manifest, suite=VERIFIED, checked_at=now, about=about, rows=windows, **outcome)


def _append_concurrently(tables: PipelineTables, manifest: Manifest, **outcome: Any) -> None:
    """Add a row that is not an outcome of a check, as of a manifest's epoch."""
    row = QualityRow(
        check_id=uuid.uuid4().hex,
        timeline=manifest.timeline,
        epoch=manifest.epoch,
        results_version=tables.open("results").version(),
        state_version=tables.open("state").version(),
        **outcome,
    )
    append(tables, [row])


def verified_epochs(tables: PipelineTables) -> set[int]:
    """Return the epochs as of which a verification of all epochs found no difference."""
    rows = read(tables, suites=[VERIFIED])
    whole = pc.and_(rows["success"], pc.not_equal(rows["about"], _SAMPLED))
    return set(rows.filter(whole)["epoch"].to_pylist())


def last_sampled(tables: PipelineTables) -> tuple[int, float] | None:
    """Return the newest epoch as of the newest verification of a sampled epoch, and the seconds that it took."""
    rows = read(tables, suites=[VERIFIED])
    rows = rows.filter(pc.equal(rows["about"], _SAMPLED))
    found = rows.select(["checked_at", "epoch", "observed_number"]).sort_by("checked_at").to_pylist()
    return (found[-1]["epoch"], found[-1]["observed_number"]) if found else None


def acknowledged(tables: PipelineTables) -> list[tuple[int, str, str]]:
    """Return epoch, condition and reason of each acknowledgement, newest first."""
    rows = read(tables, suites=[ACKNOWLEDGED])
    given = [(row["epoch"], json.loads(row["observed"])) for row in rows.to_pylist() if row["observed"]]
    return [(int(epoch), str(text["where"]), str(text["reason"])) for epoch, text in given]


def _order(rows: pa.Table) -> list[tuple[str, str]]:
    """Return the columns that sort the newest check first. Older ones have no number."""
    return [(name, "descending") for name in ("number", "checked_at") if name in rows.column_names]


def _newest_check(rows: pa.Table) -> str | None:
    return rows.sort_by(_order(rows))["check_id"][0].as_py() if len(rows) else None


def _newest_passed_check(rows: pa.Table) -> str | None:
    checks = dict.fromkeys(rows.sort_by(_order(rows))["check_id"].to_pylist())
    for check in checks:
        if state_of(rows.filter(pc.equal(rows["check_id"], check))) != "failed":
            return str(check)
    return None


def read(tables: PipelineTables, columns: list[str] | None = None, *, suites: Sequence[str] | None = None) -> pa.Table:
    """Return all outcomes, the newest check first, with all or some columns. There are none before the first check.

    With `suites`, return the rows of those suites, such as acknowledgements.
    """
    if not tables.warehouse.exists(tables.path(NAME)):
        return SCHEMA.empty_table()
    handle = tables.open(NAME)
    where = ~pc.field("suite").isin(_BESIDE_CHECKS) if suites is None else pc.field("suite").isin(suites)
    if columns is not None:
        columns = [name for name in (*columns, "number") if name != "number" or name in arrow_schema(handle).names]
    rows = read_table(tables.warehouse, handle, columns, where)
    return rows.sort_by(_order(rows))


def newest_checked(tables: PipelineTables, timeline: int) -> int | None:
    """Return the newest epoch of a timeline that was ever checked, or None if there is none."""
    rows = read(tables, ["epoch", "timeline", "checked_at"])
    newest: int | None = pc.max(rows.filter(pc.equal(rows["timeline"], timeline))["epoch"]).as_py()
    return newest


def newest(tables: PipelineTables, epoch: int | None = None) -> pa.Table:
    """Return the rows of the newest check, overall or of an epoch. Other files are not read."""
    if not tables.warehouse.exists(tables.path(NAME)):
        return SCHEMA.empty_table()
    handle = tables.open(NAME)
    is_check = ~pc.field("suite").isin(_BESIDE_CHECKS)
    where = is_check if epoch is None else is_check & (pc.field("epoch") == epoch)
    files, schema = _newest_first(active_files(handle), epoch), arrow_schema(handle)
    rows = schema.empty_table()
    for file in files:
        if len(rows) and _checked_before(file, rows):
            break
        of_file = tables.warehouse.read_files(tables.path(NAME), [file["path"]], schema, where=where)
        rows = pa.concat_tables([rows, of_file])
        rows = rows.filter(pc.equal(rows["check_id"], _newest_check(rows))) if len(rows) else rows
    return rows


def _newest_first(files: list[dict[str, Any]], epoch: int | None) -> list[dict[str, Any]]:
    """Return the files that may hold checks of an epoch, ordered by their newest check, newest first."""
    may_hold = [file for file in files if epoch is None or _may_hold(file, "epoch", epoch)]
    return sorted(
        may_hold, key=lambda file: (file.get("max.number") or -1, str(file.get("max.checked_at") or "~")), reverse=True
    )


def _may_hold(file: dict[str, Any], column: str, value: int) -> bool:
    first, last = file.get(f"min.{column}"), file.get(f"max.{column}")
    return first is None or last is None or first <= value <= last


def _checked_before(file: dict[str, Any], rows: pa.Table) -> bool:
    """Return True if every check in a file is older than the check of these rows."""
    if "number" in rows.column_names and (number := rows["number"][0].as_py()) is not None:
        last = file.get("max.number")
        return bool(last < number if last is not None else file.get("null_count.number") == file["num_records"])
    last = file.get("max.checked_at")
    return last is not None and bool(last < rows["checked_at"][0].as_py())


def newest_passed(tables: PipelineTables, epochs: Collection[int]) -> int | None:
    """Return the newest of these epochs whose newest check found nothing critical; None if there is none."""
    rows = read(tables, ["epoch", "check_id", "checked_at", "severity", "success"])
    checks = zip(rows["epoch"].to_pylist(), rows["check_id"].to_pylist(), strict=True)
    newest = dict(reversed([*checks]))
    for epoch in sorted(newest.keys() & set(epochs), reverse=True):
        if state_of(rows.filter(pc.equal(rows["check_id"], newest[epoch]))) != "failed":
            return int(epoch)
    return None


def newest_of_checked(tables: PipelineTables, epochs: Collection[int]) -> int | None:
    """Return the newest of these epochs that was ever checked; None if there is none."""
    checked = read(tables, ["epoch", "checked_at"])["epoch"].to_pylist()
    return max({*checked} & {*epochs}, default=None)


def proof_of(tables: PipelineTables, epoch: int | None) -> str | None:
    """Return the proof of an epoch's newest check, from which the next check continues; None if there is none."""
    rows = newest(tables, epoch) if epoch is not None else SCHEMA.empty_table()
    proofs = rows["proof"].drop_null().to_pylist() if "proof" in rows.column_names else []
    return str(proofs[0]) if proofs else None


def state_of(rows: pa.Table) -> str:
    """Return `passed`, `marked` (a warning failed), `failed` (a critical expectation failed), or `never checked`."""
    if not len(rows):
        return "never checked"
    broken = rows.filter(pc.invert(rows["success"]))["severity"].to_pylist()
    return "failed" if "critical" in broken else "marked" if "warning" in broken else "passed"


_TEXTS = ("observed", "about", "limits", "description")
"""Text columns that may contain a part of a key, because a check saw it or a user's suite names it."""

_EXAMPLE = ", such as "
"""Text before an example in `observed`, in rows of older tidegate versions. Newer rows have `examples` instead."""


def forget_examples(tables: PipelineTables, keys: Sequence[KeyTexts], only_if_named: bool = False) -> None:
    """Remove the examples of all checks, including those in files of killed checks.

    Any other text that contains a part of one of the keys is emptied. `only_if_named` leaves the table unchanged unless
    a file contains all parts of a key.
    """
    if not tables.warehouse.exists(tables.path(NAME)):
        return
    if only_if_named and not any(_are_named(tables, key) for key in keys):
        return
    listed: list[str] = []

    def change(handle: DeltaTable) -> tuple[pa.Table, list[RemoveAction]]:
        # A check that wrote one of these files earlier can't commit it after this change.
        listed[:] = tables.warehouse.names(tables.path(NAME))
        rows = read_table(tables.warehouse, handle)
        schema = rows.schema
        cleaned = pa.Table.from_pylist([_without_keys(row, keys) for row in rows.to_pylist()], schema=schema)
        if cleaned.equals(rows):
            return schema.empty_table(), []
        return cleaned, [remove_action(file) for file in active_files(handle)]

    # The statistics in old log entries contain the smallest and largest text of a file.
    leave_newest(tables, NAME, commit_change(tables, change), listed)


def _without_keys(row: dict[str, Any], keys: Sequence[KeyTexts]) -> dict[str, Any]:
    """Return a row of the table without examples, and without texts that contain a part of one of the keys."""
    cleaned = row | {"examples": None} if "examples" in row else {**row}
    if row["suite"] != ACKNOWLEDGED:
        cleaned["observed"] = row["observed"] and row["observed"].partition(_EXAMPLE)[0]
    named = [name for name in _TEXTS if cleaned.get(name) and any(names_part(cleaned[name], key) for key in keys)]
    cleaned |= dict.fromkeys(named, "")
    if "observed" in named and "observed_number" in row:
        cleaned["observed_number"] = None
    return cleaned


def _are_named(tables: PipelineTables, key: KeyTexts) -> bool:
    """Return True if a file contains all parts of the key in an observation or an example, or can't be read."""
    path = tables.path(NAME)
    log = f"{path}/{FOLDER}"
    files = [(folder, name) for folder in (path, log) for name in tables.warehouse.names(folder)]
    texts = (_shown(tables, folder, name) for folder, name in files)
    return any(text is None or names_key(text, key) for text in texts)


def _shown(tables: PipelineTables, folder: str, name: str) -> str | None:
    """Return the texts in a file of the table or its log; None if the file can't be read."""
    import pyarrow.parquet as pq

    with tables.warehouse.open_file(folder, name) as file:
        try:
            if name.endswith(".parquet"):
                opened = pq.ParquetFile(file)
                # Statistics in a log contain the smallest and largest text.
                columns = {*_TEXTS, "examples", "add"} & {*opened.schema_arrow.names}
                return str(opened.read(sorted(columns)).to_pylist())
            return "".join(json.dumps(action["add"]) for action in actions_in(file.read()) if "add" in action)
        except (pa.ArrowException, OSError, ValueError):
            return None
