"""Polls: does a pipeline's source have data that its stream has not read? Starts no JVM.

A poll compares the source with the position of the newest snapshot, so it needs no memory: a lost event or a watcher
that was down only delays a run. Importing this module loads no library for tables.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidegate.pipelines.definition.config import load_config

if TYPE_CHECKING:
    from pathlib import Path

    from tidegate.pipelines.ledger.snapshots.head import Snapshot
    from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
    from tidegate.pipelines.sources.watched import News

_REFRESH_SECONDS = 300.0
"""Time after which tidegate.toml, credentials of the store and the sources are always read again."""

_FIRST_RUN = "a first run of the stream, which records its sources"


@dataclass(frozen=True, slots=True)
class Poll:
    """The outcome of one poll.

    Args:
        unread: a description of what the stream would read first; None if there is nothing.
        epoch: timeline and epoch of the newest snapshot, which change as the pipeline continues; None before the first
            snapshot.
        is_taken_over: True if that snapshot's position is a stream's, from which no backfill continues.
    """

    unread: str | None
    epoch: tuple[int, int] | None = None
    is_taken_over: bool = False


@dataclass(frozen=True, slots=True)
class _View:
    """What a poll compares: the newest snapshot, and the state of each source as recorded by the last run.

    Args:
        opened_at: time of the watcher's timer, seconds.
        tables: the pipeline's tables.
        snapshot: the newest snapshot; None before the first.
        news: the recorded state of each source by its table; None if no run has recorded the sources.
    """

    opened_at: float
    tables: PipelineTables
    snapshot: Snapshot | None
    news: Mapping[str, News] | None

    def poll(self) -> Poll:
        """Poll: return what is unread now."""
        if self.snapshot is None:
            return Poll(_FIRST_RUN if self.news is None else self._first(self.news, {}))
        manifest = self.snapshot.manifest
        positions, epoch = manifest.positions, (manifest.timeline, manifest.epoch)
        is_taken_over = all(position.frontier is None for position in positions.values())
        if self.news is None:
            unread: str | None = _FIRST_RUN
        elif not is_taken_over:
            unread = f"rows of {', '.join(positions)} that the backfill did not read"
        else:
            rests = [
                f"the rest of version {each.version + 1} of {table}" for table, each in positions.items() if each.files
            ]
            versions = {table: position.version for table, position in positions.items()}
            unread = rests[0] if rests else self._first(self.news, versions)
        return Poll(unread, epoch, is_taken_over)

    def _first(self, news: Mapping[str, News], versions: Mapping[str, int]) -> str | None:
        """Describe the first unread commit. Without a version, nothing of the table has been read."""
        for table, each in news.items():
            if (version := each.first_after(versions.get(table, -1))) is not None:
                return f"version {version} of {table}"
        return None


@dataclass
class SourceWatch:
    """Polls the sources of one pipeline. Its methods block, and are called by one thread at a time.

    On an object store, a poll of one source is three requests: one for a newer snapshot, and two for the source.

    Args:
        config_file: tidegate.toml.
        pipeline: a name in it.
        timer: a monotonic clock, seconds.
    """

    config_file: Path
    pipeline: str
    timer: Callable[[], float] = time.monotonic
    _view: _View | None = field(default=None, init=False)

    def poll(self) -> Poll:
        """Poll: return what is unread now.

        Raises:
            Exception: the poll failed; the next one begins from scratch. Errors of stores have many types.
        """
        view, self._view = self._view, None
        view = view if view is not None and self._is_fresh(view) else self._open()
        look = view.poll()
        self._view = view
        return look

    def is_driven(self) -> bool:
        """Return True if a driver holds the lease. It will read the unread data; if not, the next poll finds it."""
        from tidegate.pipelines.ledger.host import system_clock
        from tidegate.pipelines.ledger.lease import read_lease

        row = read_lease((self._view or self._open()).tables)
        return row is not None and row.is_alive(system_clock())

    def _is_fresh(self, view: _View) -> bool:
        from tidegate.pipelines.ledger.snapshots.head import is_newest

        if view.news is None or view.snapshot is None or self.timer() - view.opened_at >= _REFRESH_SECONDS:
            return False
        return is_newest(view.snapshot, view.tables)

    def _open(self) -> _View:
        from tidegate.pipelines.definition.config.opened import warehouse_of
        from tidegate.pipelines.ledger.snapshots.head import read_snapshot
        from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
        from tidegate.pipelines.sources.watched import noted_sources

        config = load_config(self.config_file)
        config.entry(self.pipeline)
        tables = PipelineTables(warehouse_of(config), self.pipeline)
        sources = noted_sources(config, self.pipeline)
        news = None if sources is None else {source.table: source.news(tables.warehouse) for source in sources}
        return _View(self.timer(), tables, read_snapshot(tables), news)
