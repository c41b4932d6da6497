"""A watcher and the test of a connection on an object store: what they see, and how many requests they take. Requests
of an epoch on an object store: their number does not grow with the history, and the docs say what they cost.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.lake import DAY0, LOCAL, Lake, hourly_pipeline
from tests.recovery import arrivals
from tests.recovery.arrivals import source_of
from tests.store.lives import Life, modules_of_projects, upload
from tests.store.proxy import Proxy
from tests.store.server import KEY, SECRET, S3Server, options_of
from tidegate.pipelines.airflow.hook import WarehouseHook
from tidegate.pipelines.definition.config import load_config
from tidegate.pipelines.errors import StoreFailed
from tidegate.pipelines.observe.inspect.unread import Poll, SourceWatch
from tidegate.pipelines.run.limits import EpochLimits
from tidegate.pipelines.sources.watched import note_sources

PAGE = Path(__file__).parents[2] / "docs" / "operations" / "object-stores.md"
HOURS = hourly_pipeline()


def arrive(lake: Lake, hour: int) -> None:
    lake.append(("ann", DAY0 + timedelta(hours=hour), hour))


def watch_of(lake: Lake, folder: Path) -> SourceWatch:
    lines = [f'warehouse = "{lake.warehouse}"', "[storage_options]"]
    lines += [f'{name} = "{value}"' for name, value in lake.options.items()]
    lines += ["[pipelines.hours]", 'object = "a:b"', "start = 2024-03-01"]
    (folder / "tidegate.toml").write_text("\n".join(lines))
    return SourceWatch(folder / "tidegate.toml", "hours")


def test_a_look_on_a_store_takes_the_requests_that_the_docs_say(proxy: Proxy, bucket: str, tmp_path: Path) -> None:
    lake = Lake(tmp_path, warehouse=f"s3://{bucket}/wh", options=options_of(proxy.endpoint))
    watch = watch_of(lake, tmp_path)
    assert watch.poll() == Poll("a first run of the stream, which records its sources")
    note_sources(load_config(tmp_path / "tidegate.toml"), HOURS)
    assert watch.poll().unread is None, "there is no table yet"
    arrive(lake, 1)
    assert watch.poll().unread == "version 0 of events"
    arrivals.run(LOCAL, lake, pipeline=HOURS, limits=EpochLimits())
    assert watch.poll().unread is None
    proxy.requests()
    for _ in range(10):
        assert watch.poll().unread is None
    counted = proxy.counted()
    assert counted == Counter({"HEAD": 30})
    said = re.search(r"\| each poll of a watcher[^|]* \| (\d+) \| (\d+) \|", PAGE.read_text())
    assert said is not None
    assert (int(said[1]), int(said[2])) == (0, 3)
    arrive(lake, 2)
    assert watch.poll().unread == "version 1 of events"
    assert not watch.is_driven()


def test_a_store_that_does_not_answer_fails_the_look_and_the_next_one_is_right(
    proxy: Proxy, bucket: str, tmp_path: Path
) -> None:
    lake = Lake(tmp_path, warehouse=f"s3://{bucket}/wh", options=options_of(proxy.endpoint))
    arrive(lake, 1)
    watch = watch_of(lake, tmp_path)
    note_sources(load_config(tmp_path / "tidegate.toml"), HOURS)
    assert watch.poll().unread == "version 0 of events"
    gone = watch_of(Lake(tmp_path, warehouse=f"s3://{bucket}-gone/wh", options=lake.options), tmp_path)
    with pytest.raises(StoreFailed):
        gone.poll()
    assert watch_of(lake, tmp_path).poll().unread == "version 0 of events"


def connect(monkeypatch: pytest.MonkeyPatch, server: S3Server, **fields: Any) -> WarehouseHook:
    extra = {"endpoint_url": server.endpoint, "region_name": "eu-central-1", **fields.pop("extra")}
    connection = {"conn_type": "tidegate", "login": KEY, "password": SECRET, "extra": extra, **fields}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(connection))
    return WarehouseHook("lake")


def test_the_test_of_a_connection_writes_reads_and_leaves_nothing(
    server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = connect(monkeypatch, server, extra={"warehouse": f"s3://{bucket}/wh/"})
    assert hook.test_connection() == (
        True,
        f"s3://{bucket}/wh can be read and written to; it has 0 folders of tables",
    )
    files, _ = hook.get_conn().objects(f"s3://{bucket}")
    assert set(files.below("")) == {"wh/_tidegate/store.json"}, "the probe of conditional writes is noted"


def test_the_test_of_a_connection_says_what_is_wrong_and_no_secret(
    server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook = connect(monkeypatch, server, extra={"warehouse": f"s3://{bucket}-gone/wh"})
    outcome, told = hook.test_connection()
    assert not outcome
    assert f"there is no bucket '{bucket}-gone'" in told
    assert SECRET not in told


DEAR = {"PUT", "POST", "COPY", "LIST"}
"""Requests that S3 charges as writes."""


def requests_of_epochs(server: S3Server, proxy: Proxy, bucket: str, folder: Path, commits: int) -> list[Counter[str]]:
    """Stream a source of small commits, one per epoch, in which each epoch fires windows; return the requests of each
    epoch.
    """
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
    """Return the mean number of writes and of reads per epoch."""
    total = sum(counts, Counter[str]())
    writes = sum(number for kind, number in total.items() if kind in DEAR)
    return writes / len(counts), (total.total() - writes) / len(counts)


@pytest.mark.long
# Ten epochs are one cycle: every tenth commit of a table writes a checkpoint.
@pytest.mark.parametrize("commits", [30, pytest.param(400, marks=pytest.mark.long)])
def test_requests_of_an_epoch_do_not_grow_with_history_and_are_those_of_the_docs(
    server: S3Server, proxy: Proxy, bucket: str, tmp_path: Path, commits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Renewals of the lease happen by time and not by epoch, so they have a separate row in the docs.
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
