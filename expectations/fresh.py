"""What is new to a check: windows that became final since the newest check that passed, and their event time.

Every final window is looked at by a check that passes, however many epochs lie between two of them; what a check
found wrong is looked at again until it holds.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.tables import quality, results
from pipelines.tables.pinned import PinnedTables
from pipelines.tables.pipeline_tables import PipelineTables


@dataclass(frozen=True)
class Fresh:
    """What no check that passed has seen.

    Args:
        since: the newest epoch before the pinned one whose check passed; None if there is none.
        windows: final ones that were not final then, or that something was put out for since.
        interval: event time that was run since, `start` and `end` in epoch milliseconds; None of a stream.
    """

    since: int | None
    windows: pa.Table
    interval: dict[str, int] | None


def find_fresh(own: PipelineTables, tables: PinnedTables, final: pa.Table) -> Fresh:
    """What is new to a check.

    Args:
        own: the pipeline's tables.
        tables: the same as of an epoch.
        final: the windows that are final then.
    """
    # Epochs that a restore or a re-run replaced are not among these, whatever their checks said.
    before = tables.epochs.filter(pc.less(tables.epochs["epoch"], tables.manifest.epoch))
    since = quality.newest_passed(own, before["epoch"].to_pylist())
    if since is None:
        return Fresh(None, final, _interval(tables.epochs))
    watermark = before.filter(pc.equal(before["epoch"], since))["watermark"][0]
    is_new = pc.greater(final["epoch"], since)
    if results.has_panes(final.schema) and watermark.is_valid:
        is_new = pc.or_kleene(is_new, pc.greater(final["final_at"], watermark))
    return Fresh(
        since, final.filter(is_new), _interval(tables.epochs.filter(pc.greater(tables.epochs["epoch"], since)))
    )


def _interval(made: pa.Table) -> dict[str, int] | None:
    starts, ends = (
        made[name].cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64()) for name in ("interval_start", "interval_end")
    )
    run = {"start": pc.min(starts).as_py(), "end": pc.max(ends).as_py()}
    return None if None in run.values() else run
