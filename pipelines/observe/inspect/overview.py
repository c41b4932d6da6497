"""An overview of a project's pipelines, for the page in Airflow. Starts no JVM.

The values are plain, ready for JSON. Times are int64 epoch milliseconds. Importing this module loads no library for
tables.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.pipelines.definition.config import load_config
from tidegate.pipelines.definition.config.opened import artifacts_of
from tidegate.pipelines.errors import TidegateError
from tidegate.pipelines.failures import with_remedy
from tidegate.pipelines.storage.artifacts import docs_folder, report_name
from tidegate.pipelines.storage.credentials import masked

if TYPE_CHECKING:
    from tidegate.pipelines.definition.config import Config
    from tidegate.pipelines.ledger.snapshots.head import SnapshotEntry
    from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables

SNAPSHOTS = 10
"""Number of the newest snapshots in the overview."""

SHOWN = 8
"""Number of newest epochs, and of the source partitions that are furthest behind."""


def pipeline_names(config_file: str | Path) -> list[str]:
    """Return the names of the pipelines in tidegate.toml."""
    return sorted(load_config(Path(config_file)).declared)


def pipeline_overview(config_file: str | Path, pipeline: str) -> dict[str, Any]:
    """Return the overview of a pipeline: watermark, lag, driver, snapshots and savepoints, open windows, quality.

    Raises:
        UsageError: there is no such pipeline.
    """
    from tidegate.pipelines.definition.config.opened import warehouse_of
    from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables

    config = load_config(Path(config_file))
    now = int(time.time() * 1000)
    try:
        config.entry(pipeline)
        return {
            "pipeline": pipeline,
            "error": None,
            **_read(config, PipelineTables(warehouse_of(config), pipeline), now),
        }
    except (TidegateError, OSError) as error:
        if pipeline not in config.declared:
            raise
        # A pipeline whose tables or settings can't be trusted must not hide the others.
        return {"pipeline": pipeline, "error": masked(with_remedy(error))}


def docs_page(config_file: str | Path, pipeline: str, page: str) -> bytes | None:
    """Return a page of a pipeline's Data Docs as HTML, or None if there is no such page.

    Raises:
        UsageError: there is no such pipeline.
    """
    # Only files that a check wrote are served, not other files in the folder.
    is_page = page == "index.html" or re.fullmatch(r"check-\d{6,}-[0-9a-f]{12}\.html", page)
    return stored_page(config_file, pipeline, f"{docs_folder(pipeline)}/{page}") if is_page else None


def stored_page(config_file: str | Path, pipeline: str, name: str) -> bytes | None:
    """Return a page of a pipeline as HTML by its name among the artifacts, or None if there is no such page.

    Raises:
        UsageError: there is no such pipeline.
    """
    config = load_config(Path(config_file))
    config.entry(pipeline)
    return artifacts_of(config).read(name)


def _read(config: Config, tables: PipelineTables, now: int) -> dict[str, Any]:
    from tidegate.pipelines.ledger.lease import read_lease
    from tidegate.pipelines.ledger.snapshots.head import list_snapshots, read_snapshot
    from tidegate.pipelines.ledger.snapshots.published import newest_published, settled_watermark
    from tidegate.pipelines.ledger.snapshots.savepoint import list_savepoints
    from tidegate.pipelines.ledger.tables import quality
    from tidegate.windowing.time import MAX_TIMESTAMP, MIN_TIMESTAMP

    snapshot = read_snapshot(tables)
    if snapshot is None:
        return {"epoch": None, "snapshots": [], "savepoints": []}
    published = newest_published(tables, snapshot)
    # The results of an epoch that is not published yet are not visible.
    manifest = (published or snapshot).manifest
    watermark = MIN_TIMESTAMP if published is None else settled_watermark(published, snapshot)
    is_known = MIN_TIMESTAMP < watermark < MAX_TIMESTAMP
    lease = read_lease(tables)
    # An older epoch may have been checked in the meantime.
    checked = quality.newest_checked(tables, manifest.timeline)
    checks = quality.newest(tables, checked or 0)
    state = quality.state_of(checks)
    artifacts = artifacts_of(config)
    reports = artifacts.names(f"reports/{tables.pipeline}")
    return {
        "epoch": manifest.epoch,
        "timeline": manifest.timeline,
        "kind": manifest.kind,
        "watermark": watermark if is_known else None,
        "lag": now - watermark if is_known and not manifest.ends_by_clock else None,
        "counters": dict(manifest.counters),
        "driven_by": manifest.driven_by,
        **_epochs(tables),
        "partitions": [
            {"name": name, "watermark": each.watermark, "idle": each.idle, "waited_for": each.aligned}
            for name, each in sorted(manifest.partitions.items(), key=lambda item: item[1].watermark)[:SHOWN]
        ],
        "driver": str(lease) if lease is not None and lease.is_alive(now) else None,
        "snapshots": [_snapshot(tables, entry, reports) for entry in list_snapshots(tables, SNAPSHOTS)],
        "has_docs": artifacts.written_at(f"{docs_folder(tables.pipeline)}/index.html") is not None,
        "pages": sorted(name.rpartition("/")[2] for name in reports if "/epoch-" not in name),
        "savepoints": [
            {
                "name": entry.name,
                "epoch": entry.manifest.epoch,
                "watermark": entry.manifest.watermark,
                "created_at": entry.created_at,
                "size": entry.size,
            }
            for entry in list_savepoints(tables)
        ],
        "quality": {
            "state": state,
            "epoch": checked,
            "checked_at": int(checks["checked_at"][0].as_py().timestamp() * 1000) if len(checks) else None,
            # The text names the timeline or epoch of the check: an older check says nothing about the current results.
            "text": f"timeline {manifest.timeline}: {state}" if checked is None else f"epoch {checked}: {state}",
            "failed": sorted({row["expectation"] for row in checks.to_pylist() if not row["success"]}),
        },
        "acknowledged": [
            {"epoch": epoch, "where": where, "reason": reason} for epoch, where, reason in quality.acknowledged(tables)
        ],
    }


def _epochs(tables: PipelineTables) -> dict[str, Any]:
    """Return the newest epochs with their durations."""
    from tidegate.pipelines.definition import epochs
    from tidegate.pipelines.ledger.snapshots.published import newest_epoch_rows, published_epoch

    if not published_epoch(tables):
        # The driver died before it published the first epoch.
        return {"epochs": []}
    handle = tables.newest(epochs.NAME)
    rows = newest_epoch_rows(tables.warehouse, handle, SHOWN).to_pylist()
    return {"epochs": [_epoch(row) for row in rows]}


def _epoch(row: dict[str, Any]) -> dict[str, Any]:
    seconds = sum(value for _, value in row["phases"])
    return {
        **{name: row[name] for name in ("epoch", "kind", "events_in", "late", "rejected")},
        "seconds": round(seconds, 3),
        "events_a_second": round(row["events_in"] / seconds) if seconds else None,
    }


def _snapshot(tables: PipelineTables, entry: SnapshotEntry, reports: Collection[str]) -> dict[str, Any]:
    from tidegate.pipelines.ledger.snapshots.head import read_snapshot

    about = {
        "version": entry.version,
        "committed_at": entry.committed_at,
        "epoch": entry.epoch,
        "timeline": entry.manifest["timeline"],
        "watermark": entry.manifest["watermark"],
        "has_report": report_name(tables.pipeline, entry.epoch) in reports,
    }
    snapshot = read_snapshot(tables, entry.version)
    if snapshot is None:
        return {**about, "size": None, "open_windows": None}
    files = (*snapshot.files, *snapshot.manifest_files)
    return {
        **about,
        "size": sum({file["path"]: file["size_bytes"] for file in files}.values()),
        "open_windows": snapshot.manifest.counters["open_windows"],
    }


def failed_expectations(config_file: str | Path, pipeline: str, check_id: str) -> list[dict[str, Any]]:
    """Return the expectations that failed in a check, as in table `quality`, each with its `message`.

    Raises:
        UsageError: there is no such pipeline.
    """
    import pyarrow.compute as pc

    from tidegate.pipelines.definition.config.opened import warehouse_of
    from tidegate.pipelines.ledger.tables import quality
    from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables

    config = load_config(Path(config_file))
    config.entry(pipeline)
    rows = quality.read(PipelineTables(warehouse_of(config), pipeline))
    rows = rows.filter(pc.and_(pc.equal(rows["check_id"], check_id), pc.invert(rows["success"])))
    failed = map(quality.QualityRow.of, rows.to_pylist())
    return [{**asdict(row), "message": row.message} for row in failed]
