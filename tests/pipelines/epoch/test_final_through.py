"""After a raise of the allowed lateness, what is final waits for it, whatever kind of epoch comes next."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from deltalake import DeltaTable

from tests.lake import LOCAL, Lake, at, hourly_pipeline
from tidegate.pipelines import DeltaSource
from tidegate.pipelines.definition import results
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.ledger.snapshots.savepoint import find_snapshot
from tidegate.windowing.time import to_millis

HOUR = timedelta(hours=1)
SHORT = hourly_pipeline(
    source=DeltaSource("events", timestamp="at", changes="correct"), allowed_lateness=HOUR, max_ahead=9 * HOUR
)
LONG = replace(SHORT, compute=replace(SHORT.compute, allowed_lateness=3 * HOUR))  # type: ignore[type-var]
TEN_FINAL_AT = to_millis(at("12:00")) - 1
"""Column `final_at` of the window of 10:00, which was published under the shorter lateness."""


def waits(lake: Lake) -> Manifest:
    """Check that the window of 10:00 is not final, and return the newest manifest."""
    manifest = lake.snapshot(LONG).manifest
    assert manifest.final_through < TEN_FINAL_AT, manifest.kind
    assert lake.rows(LONG, "epochs").sort_by("epoch")["final_through"][-1].as_py() < at("12:00")
    return manifest


def test_reopening_corrections_and_restores_keep_what_is_not_final(lake: Lake) -> None:
    lake.append(("ann", at("10:10"), 1), ("ann", at("12:15"), 1))
    lake.stream(LOCAL, SHORT)
    before = lake.snapshot(SHORT).manifest
    assert before.final_through == before.watermark

    lake.append(("bob", at("13:30"), 2))
    lake.stream(LOCAL, LONG)
    assert waits(lake).watermark > TEN_FINAL_AT

    lake.append(("cem", at("08:10"), 4))
    lake.stream(LOCAL, LONG)
    assert lake.reopen(LOCAL, LONG) is not None
    reopened = waits(lake)
    assert reopened.kind == "reopen"

    DeltaTable(lake.path("events")).delete("user = 'cem'")
    lake.stream(LOCAL, LONG)
    assert "change" in lake.rows(LONG, "epochs")["kind"].to_pylist()
    waits(lake)

    tables = lake.tables(LONG)
    restore(tables, find_snapshot(tables, str(reopened.epoch)), lake.clock())
    assert waits(lake).kind == "restore"
    restore(tables, find_snapshot(tables, str(before.epoch)), lake.clock())
    assert lake.snapshot(LONG).manifest.final_through == before.watermark
    lake.stream(LOCAL, LONG)
    waits(lake)

    lake.append(("ann", at("10:40"), 8))
    lake.stream(LOCAL, LONG)
    waits(lake)
    lake.append(("ann", at("20:00"), 16))
    lake.stream(LOCAL, LONG)
    after = lake.snapshot(LONG).manifest
    assert after.final_through == after.watermark
    final = results.final(lake.latest(LONG), after.final_through).to_pylist()
    assert {row["total"] for row in final if row["window_start"] == at("10:00")} == {9}
