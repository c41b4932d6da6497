"""Table `quality`: how every expectation went in every check, so that trends can be queried.

Only appended to, one commit a check, and nothing of a pipeline rests on it; so it needs no lease.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Schema, write_deltalake

from pipelines.storage import read_table
from pipelines.tables.columns import TIMESTAMP, column
from pipelines.tables.pipeline_tables import PipelineTables

NAME = "quality"

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


def forget_examples(tables: PipelineTables, texts: Sequence[str]) -> None:
    """Cut the examples from what was seen, and what names one of the texts all the same; from the files too.

    Args:
        tables: the pipeline's tables.
        texts: parts of a key.
    """
    if not tables.warehouse.exists(tables.path(NAME)):
        return
    handle = tables.open(NAME)
    rows = read_table(tables.warehouse, handle)
    kept = [_without_example(seen, texts) for seen in rows["observed"].to_pylist()]
    if kept != rows["observed"].to_pylist():
        place = rows.schema.get_field_index("observed")
        # What a check appends meanwhile stays: only the files of this version go.
        write_deltalake(handle, rows.set_column(place, rows.schema.field(place), pa.array(kept)), mode="overwrite")
    tables.open(NAME).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    # Statistics in its entries name the smallest and the largest text of a file.
    tables.shorten_log(NAME, tables.open(NAME).version())


def _without_example(seen: str | None, texts: Sequence[str]) -> str | None:
    told = None if seen is None else seen.partition(EXAMPLE)[0]
    return "" if told and any(text in told for text in texts) else told


def read(tables: PipelineTables) -> pa.Table:
    """All rows, the newest check first; none where nothing was ever checked."""
    if not tables.warehouse.exists(tables.path(NAME)):
        return SCHEMA.empty_table()
    rows = read_table(tables.warehouse, tables.warehouse.open(tables.path(NAME)))
    return rows.sort_by([("checked_at", "descending")])


def newest(tables: PipelineTables, epoch: int | None = None, timeline: int | None = None) -> pa.Table:
    """The rows of the newest check: of all, of an epoch, or of a timeline."""
    rows = read(tables)
    for name, value in (("epoch", epoch), ("timeline", timeline)):
        if value is not None:
            rows = rows.filter(pc.equal(rows[name], pa.scalar(value, pa.int64())))
    return rows.filter(pc.equal(rows["check_id"], rows["check_id"][0])) if len(rows) else rows


def newest_passed(tables: PipelineTables, epochs: Collection[int]) -> int | None:
    """The newest of some epochs of which the newest check found nothing critical; None where there is none."""
    rows = read(tables)
    checks = rows.group_by(["epoch", "check_id", "checked_at"]).aggregate([]).sort_by("checked_at").to_pylist()
    newest = {check["epoch"]: check["check_id"] for check in checks}
    known = sorted(newest.keys() & set(epochs), reverse=True)
    return next(
        (epoch for epoch in known if state_of(rows.filter(pc.equal(rows["check_id"], newest[epoch]))) != "failed"), None
    )


def proof_of(tables: PipelineTables, epoch: int | None) -> str | None:
    """What the newest check of an epoch left for the next to go on from."""
    rows = newest(tables, epoch) if epoch is not None else SCHEMA.empty_table()
    proofs = rows["proof"].drop_null() if "proof" in rows.column_names else ()
    return str(proofs[0]) if len(proofs) else None


def state_of(rows: pa.Table) -> str:
    """`passed`, `marked` (a warning does not hold), `failed` (a critical one), or `never checked`."""
    if not len(rows):
        return "never checked"
    broken = rows.filter(pc.invert(rows["success"]))["severity"].to_pylist()
    return "failed" if "critical" in broken else "marked" if "warning" in broken else "passed"
