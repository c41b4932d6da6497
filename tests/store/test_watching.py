"""A watcher and the test of a connection on an object store: what they see, and how many requests they take."""

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
from tests.store.proxy import Proxy
from tests.store.server import KEY, SECRET, S3Server, options_of
from tidegate.pipelines.airflow.hook import WarehouseHook
from tidegate.pipelines.definition.config import load_config
from tidegate.pipelines.errors import StoreFailed
from tidegate.pipelines.observe.inspect.unread import Look, SourceWatch
from tidegate.pipelines.run.next_commits import EpochLimits
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
    assert watch.look() == Look("a first run of the stream, which records its sources")
    note_sources(load_config(tmp_path / "tidegate.toml"), HOURS)
    assert watch.look().unread is None, "there is no table yet"
    arrive(lake, 1)
    assert watch.look().unread == "version 0 of events"
    arrivals.run(LOCAL, lake, pipeline=HOURS, limits=EpochLimits())
    assert watch.look().unread is None
    proxy.requests()
    for _ in range(10):
        assert watch.look().unread is None
    counted = proxy.counted()
    assert counted == Counter({"HEAD": 30})
    said = re.search(r"\| each poll of a watcher[^|]* \| (\d+) \| (\d+) \|", PAGE.read_text())
    assert said is not None
    assert (int(said[1]), int(said[2])) == (0, 3)
    arrive(lake, 2)
    assert watch.look().unread == "version 1 of events"
    assert not watch.is_driven()


def test_a_store_that_does_not_answer_fails_the_look_and_the_next_one_is_right(
    proxy: Proxy, bucket: str, tmp_path: Path
) -> None:
    lake = Lake(tmp_path, warehouse=f"s3://{bucket}/wh", options=options_of(proxy.endpoint))
    arrive(lake, 1)
    watch = watch_of(lake, tmp_path)
    note_sources(load_config(tmp_path / "tidegate.toml"), HOURS)
    assert watch.look().unread == "version 0 of events"
    gone = watch_of(Lake(tmp_path, warehouse=f"s3://{bucket}-gone/wh", options=lake.options), tmp_path)
    with pytest.raises(StoreFailed):
        gone.look()
    assert watch_of(lake, tmp_path).look().unread == "version 0 of events"


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
        f"s3://{bucket}/wh can be read and written to; it has 0 folder(s) of pipelines and tables",
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
