"""A request to a store that took long, because the store was away, is logged: the library repeats requests silently."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest
from obstore.store import MemoryStore

from tidegate.pipelines.errors import StoreFailed
from tidegate.pipelines.storage.object_files import ObjectFiles


def files(seconds: float) -> ObjectFiles:
    """Return files of a store in memory, each of whose requests takes that long."""
    times: Iterator[int] = count()
    return ObjectFiles(MemoryStore(), "s3://lake", lambda: next(times) * seconds)


def test_a_request_that_took_long_is_logged_with_what_happens_next(caplog: pytest.LogCaptureFixture) -> None:
    files(30.0).put("visits/state/a", b"content")
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage() == (
        "s3://lake did not answer, or was slow: the request to write s3://lake/visits/state/a took 30 s and was "
        "repeated if it failed. It is done now, and the run continues"
    )


def test_quick_requests_and_failed_ones_are_not(caplog: pytest.LogCaptureFixture) -> None:
    files(1.0).put("a", b"content")
    with pytest.raises((FileNotFoundError, StoreFailed)):
        files(30.0).read_range("missing", 0, 1)
    assert caplog.records == []
