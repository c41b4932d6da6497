"""Table `quality`: how every expectation went in every check, so that trends can be queried.

One commit a check, and nothing of a pipeline rests on it; so it needs no lease. Every twentieth check or so its small
files are put together, and outcomes that are too old go.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import reduce
from operator import and_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Schema, write_deltalake
from deltalake.exceptions import CommitFailedError

from tidegate.pipelines.storage import active_files, arrow_schema, read_table
from tidegate.pipelines.tables.columns import TIMESTAMP, column
from tidegate.pipelines.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.tables.table_log import shorten_log
from tidegate.windowing.time import Millis, from_millis

NAME = "quality"

_ENOUGH = 20
"""Files that are put together."""

EXAMPLE = ", such as "
"""What stands between what was seen and an example of it."""

SCHEMA = pa.schema(
    [
        column("check_id", pa.string(), "one check of all suites has one", False),
        column("checked_at", TIMESTAMP, "when", False),
        column("timeline", pa.int64(), "of the epoch", False),
        column("epoch", pa.int64(), "whose snapshot was checked, with all rows up to it", False),
        column("suite", pa.string(), "which rows it is about", False),
        column("expectation", pa.string(), "its type", False),
        column("about", pa.string(), "the columns or limits it was given", False),
        column("severity", pa.string(), "critical, warning or info", False),
        column("success", pa.bool_(), "whether it holds", False),
        column("observed", pa.string(), "what was seen", False),
        column("rows", pa.int64(), "how many rows were looked at", False),
        column("results_version", pa.int64(), "version of table results that was read", False),
        column("state_version", pa.int64(), "version of table state", False),
        column("proof", pa.string(), "JSON: what the next check goes on from; null where this one found an error"),
    ]
)


@dataclass(frozen=True, slots=True)
class QualityRow:
    """How one expectation went."""

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


def append(tables: PipelineTables, rows: Sequence[QualityRow]) -> None:
    """Add the rows of one check, in one commit."""
    path, options = tables.path(NAME), tables.warehouse.options or None
    DeltaTable.create(
        path, Schema.from_arrow(SCHEMA), mode="ignore", name=f"{tables.pipeline}.{NAME}", storage_options=options
    )
    made = pa.Table.from_pylist([asdict(row) for row in rows], schema=SCHEMA)
    # The table of an older tidegate has fewer columns.
    write_deltalake(path, made, mode="append", schema_mode="merge", storage_options=options)


def tidy(tables: PipelineTables, oldest: Millis) -> bool:
    """Put the files together once there are many, without the checks that are too old; whether that was done.

    The newest check stays, and the newest that passed: the next one goes on from there.

    Args:
        tables: the pipeline's tables.
        oldest: checks before this moment go, int64 epoch milliseconds.
    """
    handle = tables.open(NAME)
    if len(active_files(handle)) < _ENOUGH:
        return False
    rows = read_table(tables.warehouse, handle)
    young = pc.greater_equal(rows["checked_at"], pa.scalar(from_millis(oldest)).cast(TIMESTAMP))
    needed = [check for check in (_newest_check(rows), _newest_passed_check(rows)) if check is not None]
    kept = rows.filter(pc.or_(young, pc.is_in(rows["check_id"], value_set=pa.array(needed, pa.string()))))
    try:
        # What a check appends meanwhile stays: only the files of this version go.
        write_deltalake(handle, kept.sort_by("checked_at"), mode="overwrite")
    except CommitFailedError:
        # Another check does the same at this moment.
        return False
    tables.open(NAME).vacuum(dry_run=False)
    return True


def _newest_check(rows: pa.Table) -> str | None:
    return rows.sort_by([("checked_at", "descending")])["check_id"][0].as_py() if len(rows) else None


def _newest_passed_check(rows: pa.Table) -> str | None:
    checks = rows.group_by(["check_id", "checked_at"]).aggregate([]).sort_by([("checked_at", "descending")])
    for check in checks["check_id"].to_pylist():
        if state_of(rows.filter(pc.equal(rows["check_id"], check))) != "failed":
            return str(check)
    return None


def forget_examples(tables: PipelineTables, texts: Sequence[str], only_if_named: bool = False) -> None:
    """Cut the examples from what was seen, and what names one of the texts all the same; from the files too.

    Args:
        tables: the pipeline's tables.
        texts: parts of a key.
        only_if_named: whether to leave the table as it is unless an observation has all of the texts.
    """
    if not tables.warehouse.exists(tables.path(NAME)):
        return
    handle = tables.open(NAME)
    rows = read_table(tables.warehouse, handle)
    if only_if_named and not any(all(text in (seen or "") for text in texts) for seen in rows["observed"].to_pylist()):
        return
    kept = [_without_example(seen, texts) for seen in rows["observed"].to_pylist()]
    if kept != rows["observed"].to_pylist():
        place = rows.schema.get_field_index("observed")
        # What a check appends meanwhile stays: only the files of this version go.
        write_deltalake(handle, rows.set_column(place, rows.schema.field(place), pa.array(kept)), mode="overwrite")
    tables.open(NAME).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    # Statistics in its entries name the smallest and the largest text of a file.
    shorten_log(tables, NAME, tables.open(NAME).version())


def _without_example(seen: str | None, texts: Sequence[str]) -> str | None:
    told = None if seen is None else seen.partition(EXAMPLE)[0]
    return "" if told and any(text in told for text in texts) else told


def read(tables: PipelineTables, columns: list[str] | None = None) -> pa.Table:
    """All rows (some columns of them), the newest check first; none where nothing was ever checked."""
    if not tables.warehouse.exists(tables.path(NAME)):
        return SCHEMA.empty_table()
    rows = read_table(tables.warehouse, tables.warehouse.open(tables.path(NAME)), columns)
    return rows.sort_by([("checked_at", "descending")])


def newest(tables: PipelineTables, epoch: int | None = None, timeline: int | None = None) -> pa.Table:
    """The rows of the newest check: of all, of an epoch, or of a timeline. Files that can't hold it are not read."""
    if not tables.warehouse.exists(tables.path(NAME)):
        return SCHEMA.empty_table()
    handle = tables.warehouse.open(tables.path(NAME))
    wanted = {name: value for name, value in (("epoch", epoch), ("timeline", timeline)) if value is not None}
    where = reduce(and_, (pc.field(name) == value for name, value in wanted.items())) if wanted else None
    files, schema = _newest_first(active_files(handle), wanted), arrow_schema(handle)
    rows = schema.empty_table()
    for file in files:
        if len(rows) and _checked_before(file, rows):
            break
        found = tables.warehouse.read_files(tables.path(NAME), [file["path"]], schema, where=where)
        rows = pa.concat_tables([rows, found])
        rows = rows.filter(pc.equal(rows["check_id"], _newest_check(rows))) if len(rows) else rows
    return rows


def _newest_first(files: list[dict[str, Any]], wanted: dict[str, int]) -> list[dict[str, Any]]:
    """Files by the newest check in them; of those that tell it, only such as may hold what is wanted."""
    may_hold = [file for file in files if all(_may_hold(file, name, value) for name, value in wanted.items())]
    return sorted(may_hold, key=lambda file: str(file.get("max.checked_at") or "~"), reverse=True)


def _may_hold(file: dict[str, Any], column: str, value: int) -> bool:
    first, last = file.get(f"min.{column}"), file.get(f"max.{column}")
    return first is None or last is None or first <= value <= last


def _checked_before(file: dict[str, Any], rows: pa.Table) -> bool:
    """Whether all checks in a file are older than those of some rows."""
    last = file.get("max.checked_at")
    return last is not None and bool(last < rows["checked_at"][0].as_py())


def newest_passed(tables: PipelineTables, epochs: Collection[int]) -> int | None:
    """The newest of some epochs of which the newest check found nothing critical; None where there is none."""
    rows = read(tables, ["epoch", "check_id", "checked_at", "severity", "success"])
    checks = rows.group_by(["epoch", "check_id", "checked_at"]).aggregate([]).sort_by("checked_at").to_pylist()
    newest = {check["epoch"]: check["check_id"] for check in checks}
    known = sorted(newest.keys() & set(epochs), reverse=True)
    return next(
        (epoch for epoch in known if state_of(rows.filter(pc.equal(rows["check_id"], newest[epoch]))) != "failed"), None
    )


def proof_of(tables: PipelineTables, epoch: int | None) -> str | None:
    """What the newest check of an epoch left for the next to go on from."""
    rows = newest(tables, epoch) if epoch is not None else SCHEMA.empty_table()
    proofs = rows["proof"].drop_null().to_pylist() if "proof" in rows.column_names else []
    return str(proofs[0]) if proofs else None


def state_of(rows: pa.Table) -> str:
    """`passed`, `marked` (a warning does not hold), `failed` (a critical one), or `never checked`."""
    if not len(rows):
        return "never checked"
    broken = rows.filter(pc.invert(rows["success"]))["severity"].to_pylist()
    return "failed" if "critical" in broken else "marked" if "warning" in broken else "passed"
