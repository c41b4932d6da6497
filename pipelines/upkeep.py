"""Upkeep: what a stream does for its tables between epochs, so that they have as many files in a year as in an hour.

The small files of short epochs are put together, and what no retained snapshot needs goes away.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from pipelines.errors import Refused
from pipelines.snapshots.retention import Retention, is_worthwhile, vacuum
from pipelines.tables.compaction import compact
from pipelines.tables.pipeline_tables import PUBLISHED, PipelineTables
from windowing.time import Millis


@dataclass(frozen=True, slots=True)
class Upkeep:
    """How often it is done, and what stays.

    Args:
        retention: which snapshots stay.
        epochs: it is done after each epoch whose number they divide.
    """

    retention: Retention
    epochs: int = 20

    def after(self, tables: PipelineTables, epoch: int, now: Millis) -> bool:
        """Do it if it is time; whether it was. The caller holds the lease and has published the epoch.

        Args:
            tables: the pipeline's tables.
            epoch: number of the newest one.
            now: int64 epoch milliseconds.
        """
        if epoch % self.epochs:
            return False
        # Somebody else at the tables at this moment is no reason to stop: the next time will do.
        with suppress(Refused):
            for table in PUBLISHED:
                compact(tables, table)
            if is_worthwhile(tables, self.retention, now):
                vacuum(tables, self.retention, now)
        return True
