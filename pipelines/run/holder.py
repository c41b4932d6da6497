"""The holder of a pipeline's lease, for those who know a process of another host and not the lease.

Importing this module loads no library for tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate.pipelines.errors import TidegateError

if TYPE_CHECKING:
    from tidegate.pipelines.config import Config
    from tidegate.pipelines.tables.pipeline_tables import PipelineTables


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that may hold the lease of a pipeline.

    Args:
        config: the project.
        pipeline: a name in it.
        host: name of the process's host, as `this_host` gives it there.
        process: its number.
    """

    config: Config
    pipeline: str
    host: str
    process: int

    def is_driving(self) -> bool:
        """Return True if the process holds the lease; False too if the lease can't be read."""
        from tidegate.pipelines.run.driver import system_clock
        from tidegate.pipelines.run.lease import read_lease

        try:
            row = read_lease(self._tables())
        except TidegateError:
            return False
        return row is not None and (row.host, row.process) == (self.host, self.process) and row.is_alive(system_clock())

    def stop(self) -> None:
        """Ask the process to end after its present epoch, if it holds the lease."""
        from tidegate.pipelines.run.driver import system_clock
        from tidegate.pipelines.run.lease import request_stop

        if self.is_driving():
            request_stop(self._tables(), system_clock())

    def _tables(self) -> PipelineTables:
        from tidegate.pipelines.storage import warehouse_of
        from tidegate.pipelines.tables.pipeline_tables import PipelineTables

        return PipelineTables(warehouse_of(self.config), self.pipeline)
