"""Upkeep of a stream's tables between epochs: after a year they have no more files than after an hour.

The small files of short epochs are merged, and files that no retained snapshot needs are removed. The cost of an
epoch then depends on the retained snapshots, and not on the number of epochs before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from tidegate.pipelines.errors import LeaseHeld, TidegateError
from tidegate.pipelines.failures import told_as
from tidegate.pipelines.snapshots.retained import Retention
from tidegate.pipelines.snapshots.retention import is_worthwhile, vacuum
from tidegate.pipelines.stores.credentials import masked
from tidegate.pipelines.tables.compaction import compact
from tidegate.pipelines.tables.pipeline_tables import PUBLISHED, PipelineTables
from tidegate.pipelines.tables.table_log import LogMemory
from tidegate.windowing.time import Millis

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Upkeep:
    """The interval of the upkeep, and the snapshots that it keeps.

    Args:
        retention: the snapshots to keep.
        epochs: the upkeep is done after each epoch whose number is a multiple of this.
        memory: log entries that earlier upkeep read.
    """

    retention: Retention
    epochs: int = 20
    memory: LogMemory = field(default_factory=LogMemory, compare=False, repr=False)

    def after(
        self, tables: PipelineTables, epoch: int, now: Millis, check_lease: Callable[[], None] | None = None
    ) -> bool:
        """Do the upkeep if it is due after an epoch, and return True if it was.

        The caller holds the lease and has published the epoch.

        Args:
            tables: the pipeline's tables.
            epoch: number of the newest epoch.
            now: the present time, int64 epoch milliseconds.
            check_lease: raises LeaseHeld if the lease went to another driver.

        Raises:
            LeaseHeld: the lease went to another driver, so this one has to stop.
        """
        if epoch % self.epochs:
            return False
        try:
            with told_as(f"the upkeep of the tables of {tables.pipeline} failed", "All published rows are good"):
                for table in PUBLISHED:
                    compact(tables, table, self.epochs)
                if is_worthwhile(tables, self.retention):
                    vacuum(tables, self.retention, now, check_lease=check_lease, memory=self.memory)
        except LeaseHeld:
            raise
        except TidegateError as error:
            if check_lease is not None:
                # A stream that hung over another driver's work is over.
                check_lease()
            # The stream goes on if another process works on the tables or the disk is full: no epoch needs the upkeep.
            _log.warning(
                "after epoch %d: %s. The stream tries again after %d more epochs; until then files and snapshots "
                "accumulate. `tidegate optimize` and `tidegate vacuum` do the same work at once",
                epoch,
                masked(str(error)).rstrip("."),
                self.epochs,
            )
        return True
