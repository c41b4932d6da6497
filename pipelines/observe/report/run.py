"""The data of a run report, read from the tables as of an epoch. No JVM is started."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition import epochs, results
from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.ledger.snapshots.head import state_rows
from tidegate.pipelines.ledger.snapshots.published import pin_epoch
from tidegate.pipelines.ledger.tables import quality
from tidegate.pipelines.ledger.tables.keys import text_of_value
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.windowing.columnar.slices import open_windows
from tidegate.windowing.time import Millis
from tidegate.windowing.timestamps import epoch_millis, in_schema


@dataclass(frozen=True)
class Session:
    """A window of a key in the timeline. Times are int64 epoch milliseconds."""

    start: Millis
    end: Millis
    is_open: bool


@dataclass(frozen=True)
class RunReport:
    """The data of the page.

    Args:
        manifest: manifest of the epoch's snapshot.
        version: version of table `state`.
        epochs: rows of table `epochs` up to this epoch, oldest first.
        open_by_key_group: number of windows in the snapshot for each key group.
        lengths: lengths of all final windows, milliseconds.
        key: key of the windows in `timeline`, as text; None if there is no window.
        key_texts: the text of each of its values.
        timeline: the newest windows of that key, by start.
        quality: the newest check of this epoch, one row for each expectation.
        quality_state: passed, marked, failed or never checked.
    """

    manifest: Manifest
    version: int
    epochs: list[dict[str, Any]]
    open_by_key_group: list[int]
    lengths: list[Millis]
    key: str | None
    key_texts: tuple[str, ...]
    timeline: list[Session]
    quality: list[quality.QualityRow]
    quality_state: str

    @property
    def epoch(self) -> dict[str, Any]:
        """Return the row of the reported epoch."""
        return self.epochs[-1]

    def total(self, counter: str) -> int:
        """Return the sum of a counter over all epochs up to this one."""
        # A row that is older than the counter has a null.
        return sum(row.get(counter) or 0 for row in self.epochs)


_TIMELINE_WINDOWS = 20


def read_run(tables: PipelineTables, epoch: int | None = None, key: str | None = None) -> RunReport:
    """Read the data of an epoch's report; None for the newest epoch.

    The timeline shows the windows of a key, its columns joined by `/`; None for the key with the most windows.

    Raises:
        UsageError: there is no snapshot of that epoch, or no window of that key.
        Refused: the epoch is not published yet, or was replaced.
    """
    pinned = pin_epoch(tables, epoch)
    manifest, final = pinned.snapshot.manifest, pinned.final_windows()
    names = tuple(manifest.schemas.key)
    opened = open_windows(state_rows(tables.warehouse, pinned.snapshot), names)
    by_group = Counter(opened["key_group"].to_pylist())
    checks = quality.newest(tables, manifest.epoch)
    shown, texts, timeline = _timeline(names, final, opened, key)
    return RunReport(
        manifest,
        pinned.snapshot.version,
        [row for row in in_schema(pinned.epochs, epochs.SCHEMA).to_pylist() if row["epoch"] <= manifest.epoch],
        [by_group[group] for group in range(manifest.max_parallelism)],
        _lengths(final),
        shown,
        texts,
        timeline,
        [quality.QualityRow.of(row) for row in checks.to_pylist()],
        quality.state_of(checks),
    )


def _lengths(final: pa.Table) -> list[Millis]:
    if not results.has_panes(final.schema):
        return []
    bounded = final.filter(pc.is_valid(final["window_end"]))
    micros = pc.subtract(bounded["window_end"].cast(pa.int64()), bounded["window_start"].cast(pa.int64()))
    lengths: list[Millis] = pc.divide(micros, 1000).to_pylist()
    return lengths


def _timeline(
    names: tuple[str, ...], final: pa.Table, opened: pa.Table, wanted: str | None
) -> tuple[str | None, tuple[str, ...], list[Session]]:
    """Return a key as one text and as the texts of its values, and its newest windows, final and open."""
    if not results.has_panes(final.schema):
        return None, (), []
    sessions = _bounds(final, names, is_open=False) + _bounds(opened, names, is_open=True)
    counts = Counter(key for key, _ in sessions)
    if not counts:
        if wanted is not None:
            raise UsageError(f"--key {wanted!r}: the pipeline has no windows yet")
        return None, (), []
    named = [key for key in counts if wanted in (None, _name(key))]
    if not named:
        others = ", ".join(f"'{name}'" for name in sorted(map(_name, counts))[:5])
        raise UsageError(
            f"--key {wanted!r}: no window of that key; {len(counts)} other keys have windows, such as {others}"
        )
    # Ties are broken by name, so that a report looks the same when it is drawn again.
    key = min(named, key=lambda values: (-counts[values], _name(values), repr(values)))
    mine = sorted((session for values, session in sessions if values == key), key=lambda session: session.start)
    return _name(key), tuple(map(text_of_value, key)) if names else (), mine[-_TIMELINE_WINDOWS:]


def _name(values: tuple[Any, ...]) -> str:
    """Return a key as text. Different keys may have the same text, such as `a/b`, `c` and `a`, `b/c`."""
    return "/".join(map(text_of_value, values))


def _bounds(rows: pa.Table, key: tuple[str, ...], is_open: bool) -> list[tuple[tuple[Any, ...], Session]]:
    bounded = rows.filter(pc.is_valid(rows["window_end"]))
    starts, ends = (epoch_millis(bounded[name]).to_pylist() for name in ("window_start", "window_end"))
    spans = (Session(start, end, is_open) for start, end in zip(starts, ends, strict=True))
    return list(zip(_tuples(bounded, key), spans, strict=True))


def _tuples(rows: pa.Table, key: tuple[str, ...]) -> list[tuple[Any, ...]]:
    columns = [rows[name].to_pylist() for name in key]
    return list(zip(*columns, strict=True)) if columns else [("all",)] * len(rows)
