"""The lease of a pipeline: it admits one driver at a time, and tells a second driver who holds it.

A row in a small Delta table names host, process and start time. The lease of a driver that died on this host is free
immediately; on another host it expires. If that host's clock was wrong, this may take long, so a lease can be removed
by hand. Correctness does not depend on the lease: the state commit is the fence.
"""

from __future__ import annotations

import json
import os
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType

import psutil
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from tidegate.pipelines.definition.config import LEASE_NOTE
from tidegate.pipelines.errors import LeaseHeld, Refused, StoreFailed
from tidegate.pipelines.failures import in_words, reported_as
from tidegate.pipelines.ledger.conditional_writes import check_conditional_writes
from tidegate.pipelines.ledger.host import after_boot, is_running, this_host
from tidegate.pipelines.ledger.step_log import log_start, log_step
from tidegate.pipelines.ledger.tables.files import add_action, remove_action, write_rows
from tidegate.pipelines.ledger.tables.newest import newest
from tidegate.pipelines.ledger.tables.pipeline_tables import LEASE, PipelineTables
from tidegate.pipelines.remedy import Act, Remedy
from tidegate.pipelines.storage.delta_log import FOLDER, entry_name
from tidegate.pipelines.storage.shared_folder import SharedFolder
from tidegate.pipelines.storage.warehouse import Warehouse, active_files, is_local, read_table
from tidegate.windowing.time import Millis, show_millis

TIME_TO_LIVE: Millis = 60_000
_COMMITS_PER_CLEANING = 100

_SCHEMA = pa.schema(
    [
        ("run", pa.string()),
        ("command", pa.string()),
        ("host", pa.string()),
        ("process", pa.int64()),
        ("process_started", pa.float64()),
        ("acquired_at", pa.int64()),
        ("expires_at", pa.int64()),
        ("stop_requested", pa.bool_()),
    ]
)
_PROPERTIES = {
    "delta.logRetentionDuration": "interval 1 hours",
    "delta.deletedFileRetentionDuration": "interval 1 hours",
    "delta.checkpointInterval": "20",
}

_of_this_process: set[str] = set()
"""Run ids of the leases that this process holds or is waiting for."""


@dataclass(frozen=True, slots=True)
class LeaseRow:
    """A row of the lease table: the driver of a pipeline.

    Times are int64 epoch milliseconds. `process_started` is in seconds after the boot of the host, which does not
    change when its clock is set. Rows of older versions have seconds since 1970.
    """

    run: str
    command: str
    host: str
    process: int
    process_started: float
    acquired_at: Millis
    expires_at: Millis
    stop_requested: bool = False

    def is_alive(self, now: Millis) -> bool:
        """Return True if the driver may still be running."""
        if self.expires_at <= now:
            return False
        return self.host != this_host() or self.is_running_here

    @property
    def is_running_here(self) -> bool:
        """Return True if the driver's process is running; the row must be from this host.

        For its own leases, this process keeps a record: a long-lived process, such as a notebook's, may have ended a
        run without being able to release the lease.
        """
        if not is_running(self.process, self.process_started):
            return False
        return self.process != os.getpid() or self.run in _of_this_process

    @property
    def driver(self) -> str:
        """Description of the driver within a sentence: its process, its host and its work."""
        return f"process {self.process} on {self.host} ({self.command})"

    def __str__(self) -> str:
        return f"{self.driver}, since {show_millis(self.acquired_at)}, lease until {show_millis(self.expires_at)}"


class Lease:
    """The lease of a driver, held while the driver runs and renewed in the background.

    `wait` is called with the row of another holder; it returns True to try again, False to give up.

    Raises:
        LeaseHeld: another driver holds the lease; raised on entering, and by `check` after the lease was lost.
    """

    def __init__(
        self,
        tables: PipelineTables,
        command: str,
        clock: Callable[[], Millis],
        wait: Callable[[LeaseRow], bool] = lambda holder: False,
    ) -> None:
        self._tables = tables
        self._wait = wait
        self._clock = clock
        self._lost: LeaseRow | None = None
        self._until: Millis = 0
        self._was_held = False
        self._ended = threading.Event()
        self._writing = threading.Lock()
        started = after_boot(psutil.Process())
        now = clock()
        self.row = LeaseRow(uuid.uuid4().hex, command, this_host(), os.getpid(), started, now, now + TIME_TO_LIVE)

    def __enter__(self) -> Lease:
        _of_this_process.add(self.row.run)
        try:
            self._take()
        except BaseException:
            _of_this_process.discard(self.row.run)
            raise
        self._note(None)
        log_start(self.row.run, self.row.command)
        self._renewal = threading.Thread(target=self._renew_until_ended, name="lease", daemon=True)
        self._renewal.start()
        return self

    def _take(self) -> None:
        path = self._tables.path(LEASE)
        with reported_as(
            f"the lease of pipeline {self._tables.pipeline!r} can't be taken in {path}", "Nothing was changed"
        ):
            # Every change of tables passes through here first.
            check_conditional_writes(self._tables.warehouse)
            while (holder := self._hold()) is not None and self._wait(holder):
                # The epochs of that holder began before this driver reads its clock.
                self.row = replace(self.row, acquired_at=self._clock())
        if holder is not None:
            raise LeaseHeld(
                f"pipeline {self._tables.pipeline!r} is being driven by {holder}. Wait for it; if that process is "
                "dead, its lease expires on its own",
                Remedy(Act.STOP, self._tables.pipeline),
                Remedy(Act.UNLOCK, self._tables.pipeline),
            )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._renewal.join()
        failed = isinstance(error, Exception) and not isinstance(error, LeaseHeld)
        if failed:
            # If storage itself failed, the error says so.
            with suppress(OSError, DeltaError, Refused, StoreFailed):
                self.renew()
        try:
            if self._lost is None:
                # A lease that can't be released expires on its own, and this error must not hide why the driver ends.
                with suppress(OSError, DeltaError, Refused, StoreFailed):
                    self._write(replace(self.row, expires_at=0))
        finally:
            _of_this_process.discard(self.row.run)
        log_step("ended" if self._lost is None else "lost")
        self._note(self._clock() if self._lost is None else self._lost.acquired_at)
        if failed:
            # If this driver hung and another one took the lease, that is the cause of the error.
            try:
                self.check_lost()
            except LeaseHeld as lost:
                raise lost from error

    def _note(self, until: Millis | None) -> None:
        """Record, for the parent process, when the lease was held. `until` is None while it is held."""
        if file := os.environ.get(LEASE_NOTE):
            note = {"pipeline": self._tables.pipeline, "since": self.row.acquired_at, "until": until}
            # A driver must not end because this can't be written.
            with suppress(OSError, Refused):
                SharedFolder(Path(file).parent).write(Path(file).name, json.dumps(note).encode())

    def check(self) -> None:
        """Renew a lease that expired, and raise LeaseHeld if it went to another driver; called before a commit."""
        if self._lost is None and self._clock() >= self._until:
            self.renew()
        self.check_lost()

    def check_in_table(self) -> None:
        """Do what `check` does, after reading the table: by another driver's clock, this lease may have expired."""
        holder = read_lease(self._tables)
        if holder is not None and holder.run != self.row.run:
            self._lost = holder
        self.check()

    def check_lost(self) -> None:
        """Raise LeaseHeld if an earlier check showed that another driver took the lease, even if it has ended since."""
        if self._lost is not None:
            raise LeaseHeld(
                f"pipeline {self._tables.pipeline!r}: this driver hung, and has lost the lease to {self._lost.driver} "
                f"since {show_millis(self._lost.acquired_at)}. No data is lost: run it again"
            )

    @property
    def stop_requested(self) -> bool:
        """Return True if somebody asked this driver to end after its current epoch; the table is read each time."""
        row = read_lease(self._tables)
        return row is not None and row.run == self.row.run and row.stop_requested

    def renew(self) -> None:
        """Extend the lease by its time to live, unless it went to another driver."""
        self._lost = self._hold()

    def _renew_until_ended(self) -> None:
        while self._lost is None and not self._ended.wait(TIME_TO_LIVE / 3000):
            # Storage that fails now may work at the next heartbeat, and `check` renews a lease that has expired.
            with suppress(OSError, DeltaError, Refused, StoreFailed):
                self.renew()

    def _hold(self) -> LeaseRow | None:
        until = self._clock() + TIME_TO_LIVE
        holder = self._write(replace(self.row, expires_at=until))
        if holder is None:
            self._until, self._was_held = until, True
        return holder

    def _write(self, row: LeaseRow) -> LeaseRow | None:
        """Write a row unless another driver is alive. Return that driver's row, or None if the row was written."""
        with self._writing:
            while True:
                handle = _open(self._tables)
                holder = _read(self._tables, handle)
                is_other = holder is not None and holder.run != row.run
                # If this driver held the lease before, a later holder, even a dead one, may have changed the tables, so
                # this driver must not continue.
                if is_other and holder is not None and (self._was_held or holder.is_alive(self._clock())):
                    return holder
                if holder is not None and holder.run == row.run:
                    row = replace(row, stop_requested=holder.stop_requested)
                if _replace(self._tables, handle, row):
                    return None


def read_lease(tables: PipelineTables) -> LeaseRow | None:
    """Return the row of the lease, whether held or not, or None if nobody has ever taken it."""
    if not tables.warehouse.exists(tables.path(LEASE)):
        return None
    return _read(tables, _open(tables))


def request_stop(tables: PipelineTables, now: Millis) -> LeaseRow | None:
    """Ask the running driver, on any host, to end after its current epoch, and return its row if there is one."""
    return _changed(tables, now, lambda row: replace(row, stop_requested=True))


def unlock(tables: PipelineTables, now: Millis) -> str | None:
    """Release the lease of a dead driver and return the driver's description, or None if nobody holds the lease.

    A driver that turns out to be alive takes back the lease at its next heartbeat, within 20 seconds, unless another
    driver has it by then. If two drivers continue from one snapshot, the state commit stops the second. A damaged lease
    table is removed.

    Raises:
        Refused: the driver's process is running on this host.
    """
    try:
        read_lease(tables)
    except Refused:
        tables.warehouse.delete_folder(tables.path(LEASE))
        return "a driver whose lease was unreadable"

    def released(row: LeaseRow) -> LeaseRow:
        if row.host == this_host():
            raise Refused(
                f"pipeline {tables.pipeline!r} is being driven by {row}, and that process is alive: once it has ended, "
                "its lease is free immediately",
                Remedy(Act.STOP, tables.pipeline),
            )
        return replace(row, expires_at=0)

    row = _changed(tables, now, released)
    return None if row is None else str(row)


def _changed(tables: PipelineTables, now: Millis, change: Callable[[LeaseRow], LeaseRow]) -> LeaseRow | None:
    """Change the row of the running driver, and return it as it was; None if no driver is running."""
    while tables.warehouse.exists(tables.path(LEASE)):
        handle = _open(tables)
        row = _read(tables, handle)
        if row is None or not row.is_alive(now):
            return None
        if _replace(tables, handle, change(row)):
            return row
    return None


def _open(tables: PipelineTables) -> DeltaTable:
    tables.create_one(LEASE, _SCHEMA, _PROPERTIES)
    path = tables.path(LEASE)
    # Each renewal commits, so a cached handle is out of date: checking it in a store would waste a request.
    opened = newest if is_local(path) else Warehouse.open
    try:
        return opened(tables.warehouse, path)
    except DeltaError as error:
        raise _unreadable(tables, error) from error


def _unreadable(tables: PipelineTables, error: BaseException) -> Refused:
    return Refused(
        f"the lease of pipeline {tables.pipeline!r}, {tables.path(LEASE)}, can't be read: {in_words(error)}",
        Remedy(Act.UNLOCK, tables.pipeline),
    )


def _read(tables: PipelineTables, handle: DeltaTable) -> LeaseRow | None:
    try:
        rows = read_table(tables.warehouse, handle).to_pylist()
    except Refused as error:
        raise _unreadable(tables, error.__cause__ or error) from error
    # A log entry truncated at the end of a line by a power loss leaves two rows. Waiting for the later expiry is safe.
    return LeaseRow(**max(rows, key=lambda row: row["expires_at"])) if rows else None


def _replace(tables: PipelineTables, handle: DeltaTable, row: LeaseRow) -> bool:
    """Commit a row on top of a handle's version. Return False if another commit came first.

    This does not use `commit`, which leaves old entries to retention: here Delta removes entries older than an hour.
    """
    rows = pa.Table.from_pylist([asdict(row)], schema=_SCHEMA)
    version = handle.version()
    actions: list[AddAction | RemoveAction] = [
        *map(add_action, write_rows(tables.warehouse, tables.path(LEASE), LEASE, rows)),
        *(remove_action(old) for old in active_files(handle)),
    ]
    try:
        handle.create_write_transaction(
            actions, "append", handle.schema(), commit_properties=CommitProperties(max_commit_retries=0)
        )
    except CommitFailedError as error:
        newest_one = tables.warehouse.open(tables.path(LEASE))
        if newest_one.version() <= version:
            # Nobody else committed, so the next attempt would fail in the same way.
            raise Refused(
                f"the lease of pipeline {tables.pipeline!r} can't be written: something other than a log entry is at "
                f"{tables.path(LEASE)}/{FOLDER}/{entry_name(version + 1)}. Remove it"
            ) from error
        # A store may execute a commit whose response is lost; the repeated request is then refused because the entry
        # exists.
        return _read(tables, newest_one) == row
    if handle.version() % _COMMITS_PER_CLEANING == 0:
        # A stream renews its lease for months; without this, each renewal would leave a file in its folder.
        tables.clear_lease()
    return True
