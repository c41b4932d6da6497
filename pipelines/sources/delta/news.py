"""The first commit of a Delta table that a stream would read, with two requests for each poll of an unchanged table.

`SourceLog` opens the table and checks its columns and that its files exist. A watcher needs far less, but far more
often: it follows the entries of the log one by one, and opens no table.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tidegate.pipelines.sources.delta.changes import changes_data, commit_time, removes_data
from tidegate.pipelines.storage.delta_log import FOLDER, checkpoint_versions, entry_versions
from tidegate.pipelines.storage.warehouse import Warehouse
from tidegate.windowing.time import Millis

_MAY_WAIT: Millis = 86_400_000
"""Longest time for which versions without rows are left unread: Delta keeps log entries for at least a day, and a
stream can't continue from a position before an entry that no longer exists.
"""


@dataclass
class LogNews:
    """The new versions of a table for one pipeline. `changes` is as in `DeltaSource`."""

    warehouse: Warehouse
    path: str
    changes: str = "refuse"
    clock: Callable[[], Millis] = lambda: time.time_ns() // 1_000_000
    _since: int | None = field(default=None, init=False)
    _passed: int = field(default=-1, init=False)
    _passed_at: Millis | None = field(default=None, init=False)
    _first: int | None = field(default=None, init=False)

    def first_after(self, version: int) -> int | None:
        """Return the first version after `version` that is relevant for a stream, or None if there is none.

        OPTIMIZE, VACUUM and ALTER change no rows and are ignored. They become relevant after a day, so that the stream
        moves its position past them. A table that was set back, or replaced by one with fewer versions, is relevant
        too: only the stream can tell what that means.

        Raises:
            FileNotFoundError: an entry was removed while it was read.
            ValueError: an entry is damaged.
        """
        if version != self._since:
            self._since, self._passed, self._passed_at, self._first = version, version, None, None
        if self._first is not None:
            return self._first
        log = self.warehouse.log(self.path)
        while log.info(self._passed + 1) is not None:
            actions = log.actions(self._passed + 1)
            if any(map(changes_data, actions)) and not (self.changes == "ignore" and removes_data(actions)):
                self._first = self._passed + 1
                return self._first
            if self._passed_at is None:
                self._passed_at = commit_time(actions)
            self._passed += 1
        if self._passed < 0 or log.info(self._passed) is None:
            # Before the first commit, after a cleanup of the log, or if the table was set back or replaced.
            newest = self._newest()
            return None if newest in (-1, self._passed) else newest
        waits = version >= 0 and self._passed_at is not None and self._passed_at + _MAY_WAIT <= self.clock()
        return version + 1 if waits else None

    def _newest(self) -> int:
        """Return the newest version that the log lists, or -1 if there is no table."""
        names = self.warehouse.names(f"{self.path}/{FOLDER}")
        return max([*entry_versions(names), *checkpoint_versions(names)], default=-1)


def open_news(warehouse: Warehouse, path: str, changes: str) -> LogNews:
    """Return the new versions of the table at a path; see `WatchedSource`."""
    return LogNews(warehouse, path, changes)
