"""Requests of an epoch on an object store: their number does not grow with history, and the docs say what they cost."""

from __future__ import annotations

import re
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from tests.lake import DAY0, LOCAL, hourly_pipeline
from tests.recovery import arrivals
from tests.recovery.arrivals import source_of
from tests.store.lives import Life, modules_of_projects, upload
from tests.store.proxy import Proxy
from tests.store.server import S3Server, options_of
from tidegate.pipelines.run.next_commits import EpochLimits

PAGE = Path(__file__).parents[2] / "docs" / "operations" / "object-stores.md"

DEAR = {"PUT", "POST", "COPY", "LIST"}
"""Requests that S3 charges as writes."""


def requests_of_epochs(server: S3Server, proxy: Proxy, bucket: str, folder: Path, commits: int) -> list[Counter[str]]:
    """Stream a source of small commits, one an epoch, in which each epoch fires windows; the requests of each epoch."""
    disk = arrivals.Lake(folder / "disk")
    for number in range(commits):
        moment = DAY0 + timedelta(hours=number)
        disk.append(*((f"user{user}", moment, number) for user in range(4)))
    upload(server, Path(disk.path("events")), bucket, "wh/events")
    lake = arrivals.in_bucket(disk, folder / "store", f"s3://{bucket}/wh", options_of(proxy.endpoint))
    counts: list[Counter[str]] = []

    def tell(step: str) -> None:
        if step == "published epochs":
            counts.append(proxy.counted())

    proxy.requests()
    pipeline = hourly_pipeline(parallelism=2, max_parallelism=8)
    arrivals.run(LOCAL, lake, tell, pipeline=pipeline, limits=EpochLimits(commits=1))
    assert len(counts) == commits
    return counts


def spent(counts: list[Counter[str]]) -> tuple[float, float]:
    """Return the mean number of writes and of reads of an epoch."""
    total = sum(counts, Counter[str]())
    writes = sum(number for kind, number in total.items() if kind in DEAR)
    return writes / len(counts), (total.total() - writes) / len(counts)


@pytest.mark.long
# Ten epochs are one cycle: every tenth commit of a table writes a checkpoint.
@pytest.mark.parametrize("commits", [30, pytest.param(400, marks=pytest.mark.long)])
def test_requests_of_an_epoch_do_not_grow_with_history_and_are_those_of_the_docs(
    server: S3Server, proxy: Proxy, bucket: str, tmp_path: Path, commits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Renewals of the lease, which come by time and not by epoch, have a row of their own in the docs.
    monkeypatch.setattr("tidegate.pipelines.ledger.lease.TIME_TO_LIVE", 24 * 3_600_000)
    counts = requests_of_epochs(server, proxy, bucket, tmp_path, commits)
    early, late = spent(counts[10:20]), spent(counts[-10:])
    assert late[0] <= early[0] * 1.05
    assert late[1] <= early[1] * 1.05
    said = re.search(r"\| each epoch[^|]* \| (\d+) \| (\d+) \|", PAGE.read_text())
    assert said is not None
    assert late[0] == pytest.approx(int(said[1]), rel=0.1)
    assert late[1] == pytest.approx(int(said[2]), rel=0.1)


@pytest.mark.long
def test_a_run_that_finds_no_new_rows_needs_as_many_requests_as_the_docs_say(
    server: S3Server, proxy: Proxy, bucket: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    disk = Life(tmp_path / "disk")
    source_of(disk.folder, commits=3)
    upload(server, disk.folder / "warehouse" / "events", bucket, "here/events")
    life = Life(tmp_path / "store", f"s3://{bucket}/here", options_of(proxy.endpoint))
    with modules_of_projects():
        for _ in range(5):
            proxy.requests()
            code, text = life.tidegate(capsys, "stream", "hours", "--available-now")
            assert code == 0, text
    said = re.search(r"\| a run of `tidegate stream --available-now`[^|]* \| (\d+) \| (\d+) \|", PAGE.read_text())
    assert said is not None
    assert spent([proxy.counted()]) == pytest.approx((int(said[1]), int(said[2])), rel=0.2)


def test_the_docs_multiply_requests_prices_and_epochs_rightly() -> None:
    text = PAGE.read_text()
    rows = {
        name: (int(writes), int(reads))
        for name, writes, reads in re.findall(r"\| each (\w+)[^|]* \| (\d+) \| (\d+) \|", text)
    }
    cost = {name: writes * 0.005 / 1000 + reads * 0.0004 / 1000 for name, (writes, reads) in rows.items()}
    seconds = 365.25 * 86_400 / 12
    lease = round(cost["renewal"] * seconds / 20)
    for every, name in ((1, "second"), (60, "minute")):
        assert f"| one epoch a {name} | ${round(cost['epoch'] * seconds / every)} | ${lease} |" in text
