"""Fixtures of the object store: one server and one proxy for all tests, and a bucket for each test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.store.proxy import Plan, Proxy, running_proxy
from tests.store.server import S3Server, running_server
from tidegate.pipelines.ledger import conditional_writes

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def server() -> Iterator[S3Server]:
    """The S3 server of the run."""
    with running_server() as server:
        yield server


@pytest.fixture(scope="session")
def all_through(server: S3Server) -> Iterator[Proxy]:
    """The proxy of the run, for `proxy`."""
    with running_proxy(server.port) as proxy:
        yield proxy


@pytest.fixture
def proxy(all_through: Proxy) -> Iterator[Proxy]:
    """The proxy in front of the server; it injects no faults until a test asks for them."""
    all_through.set(Plan())
    all_through.failed.clear()
    yield all_through
    all_through.set(Plan())


@pytest.fixture(autouse=True)
def quick_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the first command on a warehouse write small objects to test whether its store supports conditions."""
    monkeypatch.setattr(conditional_writes, "SIZE", 1)
    monkeypatch.setattr(conditional_writes, "ROUNDS", 1)


@pytest.fixture
def bucket(server: S3Server) -> str:
    """An empty bucket."""
    name = f"lake-{next(_numbers)}"
    server.make_bucket(name)
    return name
