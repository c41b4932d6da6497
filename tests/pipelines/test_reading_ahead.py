"""Calls to a store that are made ahead: in order, at the same time, and few for a caller who needs few results."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import partial
from itertools import count, islice
from pathlib import Path

import pytest
from obstore.store import MemoryStore
from pyarrow import fs

from tests.lake import Lake, at
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.sources.delta.log import SourceLog
from tidegate.pipelines.storage.ahead import AT_ONCE, ahead
from tidegate.pipelines.storage.delta_log import DeltaLog
from tidegate.pipelines.storage.object_files import ObjectFiles
from tidegate.pipelines.storage.warehouse import Warehouse

PATIENCE = 30.0
"""Seconds after which a test fails whose calls are not made at the same time."""


class Meeting:
    """Lets each call pass only when as many are waiting; a call that is alone for long fails."""

    def __init__(self, parties: int) -> None:
        self._barrier = threading.Barrier(parties)
        self.calls = 0

    def __call__(self, value: int = 0) -> int:
        self.calls += 1
        self._barrier.wait(PATIENCE)
        return value


def test_results_come_in_the_order_of_the_calls_which_are_made_at_the_same_time() -> None:
    meeting = Meeting(AT_ONCE)
    calls = (partial(meeting, number) for number in range(2 * AT_ONCE))
    assert [read() for read in ahead(calls, at_first=AT_ONCE)] == list(range(2 * AT_ONCE))


@pytest.mark.parametrize(("used", "most"), [(1, 1), (2, 3), (3, 7), (4, 11)])
def test_few_results_cause_few_calls(used: int, most: int) -> None:
    made: list[int] = []

    def call(number: int) -> int:
        made.append(number)
        return number

    reading = ahead(partial(call, number) for number in count())
    assert [read() for read in islice(reading, used)] == list(range(used))
    reading.close()  # type: ignore[attr-defined]
    assert len(made) <= most


def test_heavy_results_are_awaited_one_after_the_other() -> None:
    held, most, lock = 0, 0, threading.Lock()

    def call() -> int:
        nonlocal held, most
        with lock:
            held += 1
            most = max(most, held)
        return 30_000

    for read in ahead((call for _ in range(50)), weigh=int):
        read()
        with lock:
            held -= 1
    assert most <= 2


def test_an_error_is_raised_in_its_place_and_what_nobody_used_is_closed() -> None:
    def call(number: int) -> int:
        if number == 5:
            raise Refused("the fifth")
        return number

    closed: list[int] = []
    reading = ahead((partial(call, number) for number in range(12)), at_first=12, leave=closed.append)
    assert [next(reading)() for _ in range(5)] == list(range(5))
    with pytest.raises(Refused, match="the fifth"):
        next(reading)()
    reading.close()  # type: ignore[attr-defined]
    assert set(closed) <= set(range(6, 12))


def test_a_call_sees_the_callers_context() -> None:
    spelling = ContextVar("spelling", default="Python")
    spelling.set("command")
    assert {read() for read in ahead((spelling.get for _ in range(4)), at_first=4)} == {"command"}


def test_a_store_is_asked_for_many_files_at_the_same_time() -> None:
    names = [f"part-{number}" for number in range(AT_ONCE)]

    class Store:
        """A store that describes a file only when as many requests wait."""

        def __init__(self) -> None:
            self.inner, self.meeting = MemoryStore(), Meeting(AT_ONCE)

        def head(self, path: str) -> object:
            self.meeting()
            return self.inner.head(path)

    store = Store()
    for name in names[1:]:
        store.inner.put(name, b"rows")
    files = ObjectFiles(store, "s3://lake")  # type: ignore[arg-type]
    found = files.get_file_info(names)
    assert [info.path for info in found] == names
    assert [info.type for info in found] == [fs.FileType.NotFound, *[fs.FileType.File] * (len(names) - 1)]


class Watched(DeltaLog):
    """A log that records the entries that are read, and lets them wait for each other."""

    @property
    def at_once(self) -> int:
        return AT_ONCE

    def actions(self, version: int) -> list[dict[str, object]]:
        READS.append(version)
        if MEETING is not None and version >= 15:
            MEETING()
        return super().actions(version)


READS: list[int] = []
MEETING: Meeting | None = None


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Lake], SourceLog]]:
    READS.clear()

    def opened(lake: Lake) -> SourceLog:
        return SourceLog(Warehouse(str(lake.folder / "warehouse")), lake.path("events"))

    monkeypatch.setattr(Warehouse, "log", lambda self, path: Watched(*self.filesystem(f"{path}/_delta_log")))
    return opened


def test_unread_commits_are_read_together(
    tmp_path: Path, watched: Callable[[Lake], SourceLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(tmp_path)
    for number in range(47):
        lake.append(("ann", at("10:00"), number))
    log = watched(lake)
    # The first calls double: 1, 2, 4 and 8 commits; then each waits until 16 others are read.
    monkeypatch.setitem(globals(), "MEETING", Meeting(16))
    assert [commit.version for commit in log.unread(-1)] == list(range(47))
    assert sorted(READS) == list(range(47)), "each entry is read once"


def test_an_epoch_of_one_commit_reads_one_entry(tmp_path: Path, watched: Callable[[Lake], SourceLog]) -> None:
    lake = Lake(tmp_path)
    for number in range(20):
        lake.append(("ann", at("10:00"), number))
    assert next(watched(lake).unread(-1)).version == 0
    assert READS == [0]


def test_a_commit_that_takes_several_epochs_is_read_once(
    tmp_path: Path, watched: Callable[[Lake], SourceLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(tmp_path)
    for number in range(2):
        lake.append(("ann", at("10:00"), number))
    log = watched(lake)
    looked: list[str] = []
    monkeypatch.setattr(Warehouse, "sizes", lambda self, path, names: looked.extend(names) or dict.fromkeys(names, 1))
    commit = next(log.unread(-1))
    assert [next(log.now().unread(-1)) for _ in range(3)] == [commit] * 3
    assert READS == [0]
    assert len(looked) == 1
    assert next(log.unread(0)).version == 1


def test_a_poll_reads_many_new_entries_together_and_none_if_there_are_none(
    tmp_path: Path, watched: Callable[[Lake], SourceLog]
) -> None:
    lake = Lake(tmp_path)
    lake.append(("ann", at("10:00"), 0))
    log = watched(lake)
    READS.clear()
    assert log.now().head == 0
    assert READS == []
    for number in range(1, 30):
        lake.append(("ann", at("10:00"), number))
    assert log.now().head == 29
    assert set(range(1, 30)) <= set(READS)
    assert len(READS) <= 29 + 2 * AT_ONCE
