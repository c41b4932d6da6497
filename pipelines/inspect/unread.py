"""Looks of a watcher: does the source of a pipeline have something that its stream has not read? Starts no JVM.

A look compares the source with the position of the newest snapshot, so it needs no memory: an event that nobody heard,
or a watcher that was away, makes a run late and loses nothing. Importing this module loads no library for tables.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidegate.pipelines.config import Config, load_config

if TYPE_CHECKING:
    from pathlib import Path

    from tidegate.pipelines.snapshots.head import Snapshot
    from tidegate.pipelines.sources.watched import News, WatchedSource
    from tidegate.pipelines.storage import Warehouse
    from tidegate.pipelines.tables.pipeline_tables import PipelineTables

_REFRESH_SECONDS = 300.0
"""Time after which credentials of the store, the newest snapshot and the sources are asked for again in any case."""

_FIRST_RUN = "a first run of the stream, which notes its sources"


@dataclass(frozen=True, slots=True)
class Look:
    """The outcome of one look.

    Args:
        unread: the first thing that the stream would read, in words; None if there is nothing.
        epoch: timeline and epoch of the newest snapshot, which change as the pipeline goes on; None before the first.
        is_taken_over: True if a stream has made that snapshot's position: no backfill goes on from it.
    """

    unread: str | None
    epoch: tuple[int, int] | None = None
    is_taken_over: bool = False


@dataclass
class SourceWatch:
    """Looks at the sources of one pipeline. Its methods block, and are called by one thread at a time.

    On an object store a look is three requests: one for a newer snapshot, and two for each source.

    Args:
        config_file: tidegate.toml.
        pipeline: a name in it.
        fresh: seconds for which an answer about a table that another pipeline got is good enough.
        timer: a clock that never goes back, seconds.
    """

    config_file: Path
    pipeline: str
    fresh: float = 0.0
    timer: Callable[[], float] = time.monotonic
    _refreshed_at: float = field(default=float("-inf"), init=False)
    _config: Config | None = field(default=None, init=False)
    _warehouse: Warehouse | None = field(default=None, init=False)
    _sources: list[WatchedSource] | None = field(default=None, init=False)
    _watched: list[WatchedSource] | None = field(default=None, init=False)
    _news: dict[str, News] = field(default_factory=dict, init=False)
    _snapshot: Snapshot | None = field(default=None, init=False)

    def look(self) -> Look:
        """Return what there is to read now.

        Raises:
            Exception: the look failed; the next one begins from scratch. Errors of stores have many types.
        """
        try:
            return self._look()
        except Exception:
            self._refreshed_at = float("-inf")
            raise

    def is_driven(self) -> bool:
        """Return True if a driver holds the pipeline's lease: it reads what is there, or the next look sees it."""
        from tidegate.pipelines.run.driver import system_clock
        from tidegate.pipelines.run.lease import read_lease

        row = read_lease(self._tables())
        return row is not None and row.is_alive(system_clock())

    def _look(self) -> Look:
        self._refresh_settings()
        snapshot = self._newest_snapshot()
        if not self._refresh_sources():
            return Look(_FIRST_RUN, *(() if snapshot is None else _place_of(snapshot)))
        if snapshot is None:
            return Look(self._first_news({}))
        positions, (epoch, is_taken_over) = snapshot.manifest.positions, _place_of(snapshot)
        if not is_taken_over:
            return Look(f"rows of {', '.join(positions)} that the backfill left", epoch)
        parts = [(position.version + 1, table) for table, position in positions.items() if position.files]
        if parts:
            return Look(f"the rest of version {parts[0][0]} of {parts[0][1]}", epoch, is_taken_over)
        versions = {table: position.version for table, position in positions.items()}
        return Look(self._first_news(versions), epoch, is_taken_over)

    def _first_news(self, versions: dict[str, int]) -> str | None:
        """Return the first commit that is not read, in words; None if there is none.

        Args:
            versions: versions up to which tables were read; a table that is not among them was not read.
        """
        for table, news in self._news.items():
            if (version := news.first_after(versions.get(table, -1))) is not None:
                return f"version {version} of {table}"
        return None

    def _refresh_settings(self) -> None:
        """Read tidegate.toml, the credentials and the newest snapshot again, if that is long ago."""
        from tidegate.pipelines.storage import warehouse_of

        if self.timer() - self._refreshed_at < _REFRESH_SECONDS:
            return
        config = load_config(self.config_file)
        config.entry(self.pipeline)
        warehouse = warehouse_of(config)
        if warehouse != self._warehouse:
            self._watched = None
        self._config, self._warehouse, self._refreshed_at = config, warehouse, self.timer()
        self._snapshot = self._sources = None

    def _refresh_sources(self) -> bool:
        """Read the sources again, if that is long ago or a run went on since, and return False if none are noted."""
        from tidegate.pipelines.sources.watched import noted_sources

        if self._sources is None:
            assert self._config is not None
            assert self._warehouse is not None
            self._sources = noted_sources(self._config, self.pipeline)
            if self._sources != self._watched:
                self._news = {item.table: item.news(self._warehouse, self.fresh) for item in self._sources or ()}
                self._watched = self._sources
        return self._sources is not None

    def _newest_snapshot(self) -> Snapshot | None:
        from tidegate.pipelines.snapshots.head import is_newest, read_snapshot

        tables = self._tables()
        if self._snapshot is None or not is_newest(self._snapshot, tables):
            self._snapshot, self._sources = read_snapshot(tables), None
        return self._snapshot

    def _tables(self) -> PipelineTables:
        from tidegate.pipelines.tables.pipeline_tables import PipelineTables

        assert self._warehouse is not None
        return PipelineTables(self._warehouse, self.pipeline)


def _place_of(snapshot: Snapshot) -> tuple[tuple[int, int], bool]:
    """Return timeline and epoch of a snapshot, and True if a stream, and no backfill, goes on from it."""
    manifest = snapshot.manifest
    is_taken_over = all(position.frontier is None for position in manifest.positions.values())
    return (manifest.timeline, manifest.epoch), is_taken_over
