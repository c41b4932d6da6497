"""Upkeep: what a stream does for its tables between epochs, so that they have as many files in a year as in an hour.

The small files of short epochs are put together, and what no retained snapshot needs goes away. An epoch then costs
what the retained snapshots make it cost, however many there were before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from tidegate.pipelines.errors import LeaseHeld, TidegateError
from tidegate.pipelines.failures import told_as
from tidegate.pipelines.snapshots.retained import Retention
from tidegate.pipelines.snapshots.retention import is_worthwhile, vacuum
from tidegate.pipelines.tables.compaction import compact
from tidegate.pipelines.tables.pipeline_tables import PUBLISHED, PipelineTables
from tidegate.pipelines.tables.table_log import LogMemory
from tidegate.windowing.time import Millis

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Upkeep:
    """How often it is done, and what stays.

    Args:
        retention: which snapshots stay.
        epochs: it is done after each epoch whose number they divide.
        memory: what it read of the logs before.
    """

    retention: Retention
    epochs: int = 20
    memory: LogMemory = field(default_factory=LogMemory, compare=False, repr=False)

    def after(
        self, tables: PipelineTables, epoch: int, now: Millis, check_lease: Callable[[], None] | None = None
    ) -> bool:
        """Do it if it is time; whether it was. The caller holds the lease and has published the epoch.

        Args:
            tables: the pipeline's tables.
            epoch: number of the newest one.
            now: int64 epoch milliseconds.
            check_lease: raises LeaseHeld if the lease went to another driver.

        Raises:
            LeaseHeld: it did, so this driver has to stop.
        """
        if epoch % self.epochs:
            return False
        try:
            with told_as(f"the tables of {tables.pipeline} can't be kept up", "What is published is good"):
                for table in PUBLISHED:
                    compact(tables, table, self.epochs)
                if is_worthwhile(tables, self.retention):
                    vacuum(tables, self.retention, now, check_lease=check_lease, memory=self.memory)
        except LeaseHeld:
            raise
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
