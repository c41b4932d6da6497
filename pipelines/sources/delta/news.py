"""Looks into the log of a Delta table for commits that a stream would read, at two requests for each look.

`SourceLog` opens the table, checks its columns and that its files are there. A watcher asks for far less, and far more
often: it follows the entries one by one, and opens no table.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

from tidegate.pipelines.delta_log import FOLDER, checkpoint_versions, entry_versions
from tidegate.pipelines.sources.delta.actions import changes_data, commit_time
from tidegate.pipelines.sources.delta.changes import removes_data
from tidegate.pipelines.storage import Warehouse
from tidegate.windowing.time import Millis

_KEPT = 64
"""Number of entries whose answers are kept."""

_MAY_WAIT: Millis = 86_400_000
"""Longest time for which versions without rows wait: Delta keeps log entries for at least a day, and a stream whose
position stands before an entry that is gone can't go on."""

Mark: TypeAlias = tuple[int, int]
"""Size and time of writing of an entry; another entry in its place has others."""


@dataclass(frozen=True, slots=True)
class EntryFacts:
    """Facts of a commit that decide if a stream reads it.

    Args:
        has_rows: it added, removed or changed rows; OPTIMIZE, VACUUM and ALTER do not.
        removes: it removed or changed rows.
        time: its commit time, int64 epoch milliseconds.
    """

    has_rows: bool
    removes: bool
    time: Millis


class SharedLog:
    """The log of a table for all pipelines of this process that look into it. Its methods may be called by threads.

    Args:
        warehouse: the warehouse, with the options of the store.
        path: path of the table.
        timer: a clock that never goes back, seconds.
    """

    def __init__(self, warehouse: Warehouse, path: str, timer: Callable[[], float] = time.monotonic) -> None:
        self._warehouse, self._path, self._timer = warehouse, path, timer
        self._log = warehouse.log(path)
        self._marks = OrderedDict[int, tuple[float, Mark | None]]()
        self._facts = OrderedDict[tuple[int, Mark], EntryFacts]()
        self._lock = threading.Lock()

    def mark(self, version: int, fresh: float) -> Mark | None:
        """Return the mark of a version's entry, at most `fresh` seconds old; None if there is no entry."""
        with self._lock:
            at, mark = self._marks.get(version, (float("-inf"), None))
            if self._timer() - at >= fresh:
                mark = self._log.info(version)
                self._marks[version] = (self._timer(), mark)
                _cut(self._marks)
            return mark

    def facts(self, version: int, mark: Mark) -> EntryFacts:
        """Return the facts of a version whose entry has a mark.

        Raises:
            FileNotFoundError: the entry is gone.
            ValueError: the entry is damaged.
        """
        with self._lock:
            if (version, mark) not in self._facts:
                actions = self._log.actions(version)
                facts = EntryFacts(any(map(changes_data, actions)), removes_data(actions), commit_time(actions))
                self._facts[version, mark] = facts
                _cut(self._facts)
            return self._facts[version, mark]

    def newest(self) -> int:
        """Return the newest version that the log lists; -1 if there is no table."""
        names = self._warehouse.names(f"{self._path}/{FOLDER}")
        return max([*entry_versions(names), *checkpoint_versions(names)], default=-1)


def _cut(kept: OrderedDict[Any, Any]) -> None:
    while len(kept) > _KEPT:
        kept.popitem(last=False)


_Place: TypeAlias = tuple[str, tuple[tuple[str, str], ...]]
_logs: WeakValueDictionary[_Place, SharedLog] = WeakValueDictionary()
_opening = threading.Lock()


def shared_log(warehouse: Warehouse, path: str) -> SharedLog:
    """Return the log of a table; while somebody holds it, every caller of this process gets the same."""
    place = (path, tuple(sorted((warehouse.options_of(path) or {}).items())))
    with _opening:
        log = _logs.get(place)
        if log is None:
            log = _logs[place] = SharedLog(warehouse, path)
        return log


@dataclass
class LogNews:
    """The news of a table for one pipeline: the first commit after its position that its stream would read.

    Args:
        log: the log of the table.
        changes: treatment of versions that removed rows; see `DeltaSource`.
        fresh: seconds for which an answer that another pipeline got is good enough.
        clock: returns the time, int64 epoch milliseconds.
    """

    log: SharedLog
    changes: str = "refuse"
    fresh: float = 0.0
    clock: Callable[[], Millis] = lambda: time.time_ns() // 1_000_000
    _since: int | None = field(default=None, init=False)
    _examined: int = field(default=-1, init=False)
    _mark: Mark | None = field(default=None, init=False)
    _passed_at: Millis | None = field(default=None, init=False)

    def first_after(self, version: int) -> int | None:
        """Return the first version after `version` that has something for a stream; None if there is none.

        A table that was put back, or replaced by another one, is news as well: only the stream can tell what it means.
        So are versions without rows that have waited for a day: the stream moves its position past them.

        Raises:
            FileNotFoundError: an entry went while it was read.
            ValueError: an entry is damaged.
        """
        if version != self._since:
            if version != self._examined:
                self._examined, self._mark = version, None
            self._since, self._passed_at = version, None
        mark = self.log.mark(self._examined, self.fresh) if self._examined >= 0 else None
        if mark is None:
            return self._by_list()
        if self._mark not in (None, mark):
            self._since = self._mark = None
            return self._examined
        self._mark = mark
        return self._follow()

    def _follow(self) -> int | None:
        """Return the next version that has something for the stream, and pass over those that have not."""
        while (mark := self.log.mark(self._examined + 1, self.fresh)) is not None:
            facts = self.log.facts(self._examined + 1, mark)
            if facts.has_rows and not (facts.removes and self.changes == "ignore"):
                return self._examined + 1
            if self._examined == self._since:
                self._passed_at = facts.time
            self._examined, self._mark = self._examined + 1, mark
        return self._first_passed()

    def _first_passed(self) -> int | None:
        """Return the version after the position if it has no rows and has waited for too long."""
        if self._since is None or self._since < 0 or self._passed_at is None:
            return None
        return self._since + 1 if self._passed_at + _MAY_WAIT <= self.clock() else None

    def _by_list(self) -> int | None:
        """Look where the entry of the position is missing: before the first commit, or after a clean-up of the log."""
        if (news := self._follow()) is not None:
            return news
        newest = self.log.newest()
        if newest in (-1, self._examined):
            return None
        self._since = None
        return newest


def open_news(warehouse: Warehouse, path: str, fresh: float, changes: str) -> LogNews:
    """Return the news of the table at a path; see `WatchedSource`."""
    return LogNews(shared_log(warehouse, path), changes, fresh)
