"""The lease of a pipeline: it admits one driver at a time, and tells a second driver who holds it.

A small JSON document in the warehouse names host, process and start time. It changes by compare-and-set, as artifacts
do. The lease of a driver that died on this host is free immediately; on another host it expires. If that host's clock
was wrong, this may take long, so a lease can be removed by hand. Correctness does not depend on the lease: the state
commit is the fence.
"""

from __future__ import annotations

import json
import os
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from types import TracebackType

import psutil

from tidegate.pipelines.definition.config import LEASE_NOTE
from tidegate.pipelines.errors import LeaseHeld, Refused, StoreFailed
from tidegate.pipelines.failures import in_words, reported_as
from tidegate.pipelines.ledger.conditional_writes import check_conditional_writes
from tidegate.pipelines.ledger.host import after_boot, is_running, this_host
from tidegate.pipelines.ledger.step_log import log_start, log_step
from tidegate.pipelines.ledger.tables.pipeline_tables import LEASE, PipelineTables
from tidegate.pipelines.remedy import Act, Remedy
from tidegate.pipelines.storage.artifacts import Artifacts, artifacts_at
from tidegate.pipelines.storage.shared_folder import SharedFolder
from tidegate.windowing.time import Millis, show_millis

TIME_TO_LIVE: Millis = 60_000

_DOCUMENT = "holder.json"
"""Name of the document in the folder of the lease."""

_of_this_process: set[str] = set()
"""Run ids of the leases that this process holds or is waiting for."""


@dataclass(frozen=True, slots=True)
class Holder:
    """What the lease says of a pipeline's driver, the last one if nobody holds the lease.

    Times are int64 epoch milliseconds. `process_started` is in seconds after the boot of the host, which does not
    change when its clock is set.
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
        """Return True if the driver's process is running; its host must be this one.

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

    `wait` is called with another holder; it returns True to try again, False to give up.

    Raises:
        LeaseHeld: another driver holds the lease; raised on entering, and by `check` after the lease was lost.
    """

    def __init__(
        self,
        tables: PipelineTables,
        command: str,
        clock: Callable[[], Millis],
        wait: Callable[[Holder], bool] = lambda holder: False,
    ) -> None:
        self._tables = tables
        self._wait = wait
        self._clock = clock
        self._lost: Holder | None = None
        self._until: Millis = 0
        self._was_held = False
        self._ended = threading.Event()
        self._writing = threading.Lock()
        started = after_boot(psutil.Process())
        now = clock()
        self.holder = Holder(uuid.uuid4().hex, command, this_host(), os.getpid(), started, now, now + TIME_TO_LIVE)

    def __enter__(self) -> Lease:
        _of_this_process.add(self.holder.run)
        try:
            self._take()
        except BaseException:
            _of_this_process.discard(self.holder.run)
            raise
        self._note(None)
        log_start(self.holder.run, self.holder.command)
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
                self.holder = replace(self.holder, acquired_at=self._clock())
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
            with suppress(OSError, Refused, StoreFailed):
                self.renew()
        try:
            if self._lost is None:
                # A lease that can't be released expires on its own, and this error must not hide why the driver ends.
                with suppress(OSError, Refused, StoreFailed):
                    self._write(replace(self.holder, expires_at=0))
        finally:
            _of_this_process.discard(self.holder.run)
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
            note = {"pipeline": self._tables.pipeline, "since": self.holder.acquired_at, "until": until}
            # A driver must not end because this can't be written.
            with suppress(OSError, Refused):
                SharedFolder(Path(file).parent).write(Path(file).name, json.dumps(note).encode())

    def check(self) -> None:
        """Renew a lease that expired, and raise LeaseHeld if it went to another driver; called before a commit."""
        if self._lost is None and self._clock() >= self._until:
            self.renew()
        self.check_lost()

    def check_document(self) -> None:
        """Do what `check` does, after reading the lease: by another driver's clock, this lease may have expired."""
        holder = read_lease(self._tables)
        if holder is not None and holder.run != self.holder.run:
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
        """Return True if somebody asked this driver to end after its current epoch; the lease is read each time."""
        holder = read_lease(self._tables)
        return holder is not None and holder.run == self.holder.run and holder.stop_requested

    def renew(self) -> None:
        """Extend the lease by its time to live, unless it went to another driver."""
        self._lost = self._hold()

    def _renew_until_ended(self) -> None:
        while self._lost is None and not self._ended.wait(TIME_TO_LIVE / 3000):
            # Storage that fails now may work at the next heartbeat, and `check` renews a lease that has expired.
            with suppress(OSError, Refused, StoreFailed):
                self.renew()

    def _hold(self) -> Holder | None:
        until = self._clock() + TIME_TO_LIVE
        other = self._write(replace(self.holder, expires_at=until))
        if other is None:
            self._until, self._was_held = until, True
        return other

    def _write(self, mine: Holder) -> Holder | None:
        """Write what the lease says, unless another driver is alive. Return that driver, or None after writing."""
        other: Holder | None = None

        def changed(content: bytes | None) -> bytes | None:
            nonlocal other
            holder, other = _parsed(self._tables, content), None
            if holder is None or holder.run == mine.run:
                return _written(replace(mine, stop_requested=holder is not None and holder.stop_requested))
            # If this driver held the lease before, a later holder, even a dead one, may have changed the tables, so
            # this driver must not continue.
            if self._was_held or holder.is_alive(self._clock()):
                other = holder
                return None
            return _written(mine)

        with self._writing:
            _document(self._tables).change(_DOCUMENT, changed)
        return other


def read_lease(tables: PipelineTables) -> Holder | None:
    """Return what the lease says, whether it is held or not, or None if nobody has ever taken it."""
    return _parsed(tables, _document(tables).read(_DOCUMENT))


def request_stop(tables: PipelineTables, now: Millis) -> Holder | None:
    """Ask the running driver, on any host, to end after its current epoch, and return it if there is one."""
    return _changed(tables, now, lambda holder: replace(holder, stop_requested=True))


def unlock(tables: PipelineTables, now: Millis) -> str | None:
    """Release the lease of a dead driver and return the driver's description, or None if nobody holds the lease.

    A driver that turns out to be alive takes back the lease at its next heartbeat, within 20 seconds, unless another
    driver has it by then. If two drivers continue from one snapshot, the state commit stops the second. A damaged lease
    is removed.

    Raises:
        Refused: the driver's process is running on this host.
    """
    try:
        read_lease(tables)
    except Refused:
        tables.warehouse.delete_folder(tables.path(LEASE))
        return "a driver whose lease was unreadable"

    def released(holder: Holder) -> Holder:
        if holder.host == this_host():
            raise Refused(
                f"pipeline {tables.pipeline!r} is being driven by {holder}, and that process is alive: once it has "
                "ended, its lease is free immediately",
                Remedy(Act.STOP, tables.pipeline),
            )
        return replace(holder, expires_at=0)

    holder = _changed(tables, now, released)
    return None if holder is None else str(holder)


def _changed(tables: PipelineTables, now: Millis, change: Callable[[Holder], Holder]) -> Holder | None:
    """Change what the lease says of the running driver, and return it as it was; None if no driver is running."""
    was: Holder | None = None
    written: bytes | None = None

    def changed(content: bytes | None) -> bytes | None:
        nonlocal was, written
        if content is not None and content == written:
            # A store may have made the change although its answer was lost.
            return None
        holder = _parsed(tables, content)
        was = holder if holder is not None and holder.is_alive(now) else None
        written = None if was is None else _written(change(was))
        return written

    document = _document(tables)
    if document.read(_DOCUMENT) is not None:
        document.change(_DOCUMENT, changed)
    return was


def _document(tables: PipelineTables) -> Artifacts:
    path = tables.path(LEASE)
    return artifacts_at(path, tables.warehouse.options_of(path) or {})


def _written(holder: Holder) -> bytes:
    return json.dumps(asdict(holder)).encode()


def _parsed(tables: PipelineTables, content: bytes | None) -> Holder | None:
    if content is None:
        return None
    try:
        noted = json.loads(content)
        return Holder(**{field.name: noted[field.name] for field in fields(Holder)})
    except (ValueError, KeyError, TypeError) as error:
        raise Refused(
            f"the lease of pipeline {tables.pipeline!r}, {tables.path(LEASE)}/{_DOCUMENT}, can't be read: "
            f"{in_words(error)}",
            Remedy(Act.UNLOCK, tables.pipeline),
        ) from error
