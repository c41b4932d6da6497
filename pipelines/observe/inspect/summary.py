"""One line for each pipeline, for the table at the top of the page in Airflow. Starts no JVM.

The page polls these lines for every pipeline on the screen, so they must cost little: each part of a line is computed
again only after a commit to the tables that it comes from, or after five minutes. A pipeline that can't be read has its
error in its own line. Importing this module loads no library for tables.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tidegate.pipelines.definition.config import load_config
from tidegate.pipelines.definition.config.opened import artifacts_of
from tidegate.pipelines.errors import TidegateError
from tidegate.pipelines.failures import with_remedy
from tidegate.pipelines.ledger.host import system_clock
from tidegate.pipelines.storage.artifacts import docs_folder
from tidegate.pipelines.storage.credentials import masked

if TYPE_CHECKING:
    from tidegate.pipelines.definition.config import Config
    from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
    from tidegate.pipelines.storage.artifacts import Artifacts
    from tidegate.pipelines.storage.warehouse import Warehouse

_T = TypeVar("_T")

_KEPT = 4000
"""Number of cached parts: four for each of a thousand pipelines."""

_OLDEST_SECONDS = 300.0
"""Age at which a part is computed again even without a commit: a file may have been damaged in the meantime."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Summary:
    """A pipeline in the table. Times are int64 epoch milliseconds. Before the first epoch, most fields are None.

    Args:
        pipeline: its name.
        error: why it can't be read; None if it can.
        epoch: the newest published epoch.
        epoch_at: clock of that epoch.
        watermark: event time up to which its results are complete; None while there is no watermark.
        has_lag: True if the distance of the watermark to the clock means something: False for windows that the clock
            ends.
        driven_by: `backfill`, or `stream` once a stream has taken over.
        unpublished: number of an epoch that is committed and not published yet, or None.
        late: late rows of all epochs.
        rejected: rejected rows of all epochs.
        driver: the running driver, or None.
        quality: state of the newest check: `passed`, `marked`, `failed` or `never checked`.
        quality_text: the same with the epoch of the check.
        checked_at: time of that check.
        failed: expectations that failed in it.
        has_docs: True if there are Data Docs.
    """

    pipeline: str
    error: str | None = None
    epoch: int | None = None
    epoch_at: int | None = None
    watermark: int | None = None
    has_lag: bool = False
    driven_by: str | None = None
    unpublished: int | None = None
    late: int | None = None
    rejected: int | None = None
    driver: str | None = None
    quality: str | None = None
    quality_text: str | None = None
    checked_at: int | None = None
    failed: tuple[str, ...] = ()
    has_docs: bool = False


@dataclass(frozen=True, slots=True)
class _Opened:
    """A project: its settings, tables and files."""

    config: Config
    warehouse: Warehouse
    artifacts: Artifacts


@dataclass(frozen=True, slots=True)
class _Part:
    """A cached part of a line: the mark of its tables, the time at which it was computed, and its value."""

    mark: object
    at: float
    value: Any


@dataclass
class Summaries:
    """The lines of pipelines, with a cache that the threads of a process share.

    Args:
        clock: returns the current time, int64 epoch milliseconds.
        monotonic: returns seconds from a monotonic clock.
    """

    clock: Callable[[], int] = system_clock
    monotonic: Callable[[], float] = time.monotonic
    _parts: OrderedDict[tuple[str, ...], _Part] = field(default_factory=OrderedDict, init=False)
    _totals: dict[str, _Totals] = field(default_factory=dict, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def of(self, pipelines: Sequence[tuple[Path, str]]) -> list[dict[str, Any]]:
        """Return the lines of pipelines, each given by the tidegate.toml of its project and its name, as plain values.

        An error of one pipeline, whatever it is, is in its own line.
        """
        projects: dict[Path, _Opened | TidegateError | OSError] = {}
        return [asdict(self._line(projects, config_file, name)) for config_file, name in pipelines]

    def _line(self, projects: dict[Path, _Opened | TidegateError | OSError], config_file: Path, name: str) -> Summary:
        try:
            if config_file not in projects:
                projects[config_file] = self._opened(config_file)
            project = projects[config_file]
            if isinstance(project, Exception):
                raise project
            project.config.entry(name)
            return self._read(project, name)
        except (TidegateError, OSError) as error:
            return Summary(name, error=masked(with_remedy(error)))
        except Exception as error:
            # Whatever it is, it must not hide the other pipelines.
            _log.exception("pipeline %s can't be shown", name)
            return Summary(
                name, error=masked(f"{type(error).__name__}: {error}. The log of Airflow's API server says where")
            )

    def _opened(self, config_file: Path) -> _Opened | TidegateError | OSError:
        from tidegate.pipelines.definition.config.opened import warehouse_of

        try:
            status = config_file.stat()
            mark = (status.st_ino, status.st_mtime_ns, status.st_size)
            config = self._part(("config", str(config_file)), mark, lambda: load_config(config_file))
            return _Opened(config, warehouse_of(config), artifacts_of(config))
        except FileNotFoundError:
            # This raises the error that says what to do.
            load_config(config_file)
            raise
        except (TidegateError, OSError) as error:
            return error

    def _read(self, project: _Opened, name: str) -> Summary:
        from tidegate.pipelines.definition import epochs, state
        from tidegate.pipelines.ledger.lease import read_lease
        from tidegate.pipelines.ledger.tables import quality
        from tidegate.pipelines.ledger.tables.newest import mark_of
        from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables

        tables = PipelineTables(project.warehouse, name)

        def part(of: str, names: Sequence[str], compute: Callable[[], _T]) -> _T:
            key = (of, project.config.warehouse_uri, name)
            known = self._known(key)
            marks = tuple(
                mark_of(tables.warehouse, tables.path(table), None if known is None else known.mark[index])
                for index, table in enumerate(names)
            )
            return self._part(key, marks, compute)

        progress = part("progress", (state.NAME, epochs.NAME), lambda: self._progress(tables))
        if progress is None:
            return Summary(name)
        now = self.clock()
        lease = read_lease(tables)
        timeline = progress["timeline"]
        checked = part(f"quality {timeline}", (quality.NAME,), lambda: _quality(tables, timeline))
        return Summary(
            name,
            **{of: value for of, value in progress.items() if of != "timeline"},
            **checked,
            driver=str(lease) if lease is not None and lease.is_alive(now) else None,
            has_docs=project.artifacts.written_at(f"{docs_folder(name)}/index.html") is not None,
        )

    def _progress(self, tables: PipelineTables) -> dict[str, Any] | None:
        """Return the newest published epoch and the totals, with the timeline; None before the first snapshot."""
        from tidegate.pipelines.ledger.snapshots.head import read_snapshot
        from tidegate.pipelines.ledger.snapshots.published import newest_published, published_epoch, settled_watermark
        from tidegate.windowing.time import MAX_TIMESTAMP, MIN_TIMESTAMP

        head = read_snapshot(tables)
        if head is None:
            return None
        number = published_epoch(tables)
        published = newest_published(tables, head, number)
        committed = {"timeline": head.manifest.timeline, "unpublished": head.manifest.epoch}
        if published is None:
            return committed
        with self._lock:
            totals = self._totals.setdefault(tables.path(""), _Totals())
        manifest = published.manifest
        watermark = settled_watermark(published, head)
        is_known = MIN_TIMESTAMP < watermark <= MAX_TIMESTAMP
        late, rejected = totals.of(tables)
        return {
            "timeline": manifest.timeline,
            "epoch": manifest.epoch,
            "epoch_at": manifest.processing_time,
            "watermark": watermark if is_known else None,
            "has_lag": is_known and watermark < MAX_TIMESTAMP and not manifest.ends_by_clock,
            "driven_by": manifest.driven_by,
            "unpublished": head.manifest.epoch if head.manifest.epoch > number else None,
            "late": late,
            "rejected": rejected,
        }

    def _known(self, key: tuple[str, ...]) -> Any:
        with self._lock:
            return self._parts.get(key)

    def _part(self, key: tuple[str, ...], mark: object, compute: Callable[[], _T]) -> _T:
        """Return a part of a line: the cached one if nothing has changed since, otherwise a new one."""
        known, now = self._known(key), self.monotonic()
        if known is None or known.mark != mark or now - known.at > _OLDEST_SECONDS:
            # Tables that change while they are read have another mark at the next poll.
            known = _Part(mark, now, compute())
        with self._lock:
            self._parts[key] = known
            self._parts.move_to_end(key)
            while len(self._parts) > _KEPT:
                self._parts.popitem(last=False)
        value: _T = known.value
        return value


def _quality(tables: PipelineTables, timeline: int) -> dict[str, Any]:
    """Return the newest check of the newest checked epoch of a timeline."""
    from tidegate.pipelines.ledger.tables import quality

    # An older epoch may have been checked in the meantime.
    epoch = quality.newest_checked(tables, timeline)
    checks = quality.newest(tables, epoch or 0)
    state = quality.state_of(checks)
    return {
        "quality": state,
        # An older check says nothing about the current results.
        "quality_text": f"timeline {timeline}: {state}" if epoch is None else f"epoch {epoch}: {state}",
        "checked_at": int(checks["checked_at"][0].as_py().timestamp() * 1000) if len(checks) else None,
        "failed": tuple(sorted({row["expectation"] for row in checks.to_pylist() if not row["success"]})),
    }


@dataclass
class _Totals:
    """Late and rejected rows of all epochs, with the sums of the files that were read before.

    Files never change: a row that becomes stale is in a new file.
    """

    sums: dict[str, tuple[int, int]] = field(default_factory=dict)

    def of(self, tables: PipelineTables) -> tuple[int, int]:
        """Return the late and the rejected rows of the epochs in table `epochs`."""
        import pyarrow.compute as pc

        from tidegate.pipelines.definition import epochs
        from tidegate.pipelines.storage.warehouse import active_files, arrow_schema

        handle = tables.newest(epochs.NAME)
        names, schema, sums = [file["path"] for file in active_files(handle)], arrow_schema(handle), {}
        for name in names:
            if (known := self.sums.get(name)) is None:
                columns = ["late", "rejected"]
                rows = tables.warehouse.read_files(
                    tables.path(epochs.NAME), [name], schema, columns, ~pc.field("stale")
                )
                late, rejected = (pc.sum(rows[column]).as_py() or 0 for column in columns)
                known = (late, rejected)
            sums[name] = known
        self.sums = sums
        return sum(late for late, _ in sums.values()), sum(rejected for _, rejected in sums.values())
