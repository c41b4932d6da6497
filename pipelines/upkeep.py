"""Upkeep: what a stream does for its tables between epochs, so that they have as many files in a year as in an hour.

The small files of short epochs are put together, and what no retained snapshot needs goes away.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from pipelines.errors import TidegateError
from pipelines.failures import told_as
from pipelines.snapshots.retention import Retention, is_worthwhile, vacuum
from pipelines.tables.compaction import compact
from pipelines.tables.pipeline_tables import PUBLISHED, PipelineTables
from windowing.time import Millis

_log = logging.getLogger(__name__)


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
        try:
            with told_as(f"the tables of {tables.pipeline} can't be kept up", "What is published is good"):
                for table in PUBLISHED:
                    compact(tables, table)
                if is_worthwhile(tables, self.retention, now):
                    vacuum(tables, self.retention, now)
        except TidegateError as error:
            # Somebody else at the tables, or a disk that is full now, is no reason to stop: no epoch rests on it.
            _log.warning(
                "after epoch %d: %s. Tried again %d epochs on; files and snapshots gather until then, and "
                "`tidegate optimize` and `tidegate vacuum` do the same by hand",
                epoch,
                str(error).rstrip("."),
                self.epochs,
            )
        return True
