"""The verification of a pipeline: windows computed again from the source, and the tables compared with one another.

Windows of drawn keys are computed by a plain reading of the rules (`inspect.lives`), which shares no code with the
operators. Nothing is changed, and no JVM starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition import epochs, late, results
from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.errors import QualityFailed, Refused
from tidegate.pipelines.ledger.manifest import is_on
from tidegate.pipelines.ledger.snapshots.head import (
    require_snapshot,
)
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.observe.inspect.faults import (
    Draw,
    Fault,
    faults_of_epochs,
    faults_of_late_rows,
    faults_of_manifests,
    faults_of_windows,
)
from tidegate.pipelines.observe.inspect.history import history
from tidegate.pipelines.observe.report.answer import Answer, Grid, Shown, cell
from tidegate.pipelines.storage.warehouse import read_table
from tidegate.windowing.time import show_millis

_MOST_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Verified(Answer):
    """The outcome of a verification.

    Args:
        pipeline: name of the pipeline.
        epoch: its newest epoch.
        sample: share of the keys whose windows were computed again, 0 to 1.
        seed: seed of the draw.
        keys: number of drawn keys.
        windows: number of windows that were computed again.
        unverifiable: number of windows of drawn keys that can't be computed again.
        why_unverifiable: the reason; None if there are none.
        late_rows: number of late rows that were checked.
        epochs: number of epochs that were checked.
        manifests: number of retained manifests that were checked.
        faults: the differences.
    """

    pipeline: str
    epoch: int
    sample: float
    seed: int
    keys: int
    windows: int
    unverifiable: int
    why_unverifiable: str | None
    late_rows: int
    epochs: int
    manifests: int
    faults: tuple[Fault, ...]

    @property
    def success(self) -> bool:
        """True if there is no difference."""
        return not self.faults

    def require(self) -> Verified:
        """Return this outcome, if it is good.

        Raises:
            QualityFailed: something differs.
        """
        if self.success:
            return self
        kinds = ", ".join(sorted({fault.kind for fault in self.faults}))
        raise QualityFailed(f"{self.pipeline}, epoch {self.epoch}: {len(self.faults)} difference(s): {kinds}")

    def to_dict(self) -> dict[str, Any]:
        # A class with __slots__ has no other way to its base's method.
        return {**Answer.to_dict(self), "success": self.success}

    def shown(self) -> Iterator[Shown]:
        yield (
            f"{self.pipeline}, epoch {self.epoch}: {self.windows} windows of {self.keys} drawn keys computed again, "
            f"{self.late_rows} late rows, {self.epochs} epochs and {self.manifests} manifests checked: "
            f"{len(self.faults) or 'no'} difference(s)"
        )
        if self.unverifiable:
            yield f"{self.unverifiable} windows of drawn keys are unverifiable: {self.why_unverifiable}"
        if self.faults:
            yield Grid(
                f"differences ({min(len(self.faults), _MOST_SHOWN)} of {len(self.faults)})",
                ("what", "epoch", "key", "window (UTC)", "expected", "found"),
                [
                    (
                        fault.kind,
                        fault.epoch,
                        cell(fault.key),
                        show_millis(fault.start),
                        cell(fault.expected),
                        cell(fault.found),
                    )
                    for fault in self.faults[:_MOST_SHOWN]
                ],
            )
            yield f"how a window came about: `tidegate trace {self.pipeline} KEY --window START`"
        if self.sample < 1:
            yield (
                f"each key was drawn with probability {self.sample:g} (seed {self.seed}): wrong windows of k keys are "
                f"found with probability 1 - (1 - {self.sample:g})^k; --sample all finds them all"
            )


def verify(config: Config, pipeline: str, share: float, seed: int | None) -> Verified:
    """Verify the tables of a pipeline as of its newest epoch.

    Args:
        config: the project.
        pipeline: name of the pipeline.
        share: share of the keys to draw, above 0 up to 1.
        seed: seed of the draw; the same seed draws the same keys. None takes the number of the newest epoch.
    """
    tables = PipelineTables.of(config, pipeline)
    snapshot = require_snapshot(tables)
    manifest = snapshot.manifest
    seed = manifest.epoch if seed is None else seed
    now = results.current(manifest.epoch)
    rows_of = {name: read_table(tables.warehouse, tables.open(name), where=now) for name in (results.NAME, late.NAME)}
    told = read_table(tables.warehouse, tables.open(epochs.NAME), where=~pc.field("stale"))
    told = told.filter(pa.array([is_on(manifest.line, epoch) for epoch in told["epoch"].to_pylist()], pa.bool_()))
    faults = [*faults_of_late_rows(rows_of[late.NAME], told), *faults_of_epochs(told, rows_of[late.NAME])]
    manifests, chain = faults_of_manifests(tables, manifest, told)
    faults += chain
    key = manifest.schemas.key
    windows = results.latest(rows_of[results.NAME], tuple(key))
    draw = Draw.of(windows, tuple(key), share, seed)
    drawn = windows.filter(pa.array(draw.flags(windows)))
    keys = len({tuple(row.values()) for row in drawn.select(list(key)).to_pylist()}) if key else int(len(drawn) > 0)
    checked, reason = 0, None
    try:
        found, checked, keys = faults_of_windows(history(config, pipeline), snapshot, rows_of, drawn, draw)
        faults += found
    except Refused as error:
        reason = str(error)
    return Verified(
        pipeline,
        manifest.epoch,
        share,
        seed,
        keys,
        checked,
        len(drawn) if reason is not None else 0,
        reason,
        len(rows_of[late.NAME]),
        len(told),
        manifests,
        tuple(faults),
    )
