"""Sessions of Spark Connect, without a server: addresses, refusals, the number of cores, and long waits."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.engine.spark import connect
from tidegate.pipelines.engine.spark.connect import count_cores, is_connect, keep_alive, remote_of
from tidegate.pipelines.engine.spark.session import ended_with, start_session
from tidegate.pipelines.errors import TidegateError, UsageError


def remote_session(calls: list[str]) -> Any:
    """A session of Connect that notes which settings it was asked for, and has no `sparkContext`."""
    conf = SimpleNamespace(get=calls.append)
    return type("SparkSession", (), {"__module__": "pyspark.sql.connect.session", "conf": conf})()


def test_a_setting_names_the_server_or_else_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    assert remote_of({"spark.master": "local[2]"}) is None
    monkeypatch.setenv("SPARK_REMOTE", "sc://environment")
    assert remote_of({}) == "sc://environment"
    assert remote_of({"spark.remote": "sc://setting"}) == "sc://setting"


def test_spark_in_this_process_is_no_server(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"spark.remote = 'local\[2\]': give the address of a Spark Connect server"):
        start_session(Config(root=tmp_path, spark={"spark.remote": "local[2]"}), "tests")


@pytest.mark.parametrize("faulty", ["sc://", "sc://host:15002/path", "sc://host:port", "sc://host/;token"])
def test_a_faulty_address_is_named_with_a_good_one(tmp_path: Path, faulty: str) -> None:
    with pytest.raises(UsageError, match=r"is not the address of a Spark Connect server: give sc://host:port"):
        start_session(Config(root=tmp_path, spark={"spark.remote": faulty}), "tests")


def test_a_server_that_is_down_is_named_without_the_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "_ANSWERS_WITHIN", 0.2)
    with pytest.raises(TidegateError) as raised:
        start_session(Config(root=tmp_path, spark={"spark.remote": "sc://ann@127.0.0.1:1/;token=hush"}), "tests")
    assert str(raised.value).startswith("no Spark Connect server answers at sc://127.0.0.1:1 within 0 s: start it")
    assert "hush" not in str(raised.value)
    assert raised.value.exit_code == 1, "a retry may find it up"


def test_a_session_that_waits_for_data_is_used_every_five_minutes() -> None:
    calls: list[str] = []
    session, times = remote_session(calls), iter([1000.0, 1299.0, 1300.0, 1301.0, 1600.0])
    used = []
    for _ in range(5):
        keep_alive(session, lambda: next(times))
        used.append(len(calls))
    assert used == [0, 0, 1, 1, 2]


def test_a_server_is_nobodys_child_and_a_session_with_a_jvm_needs_no_care() -> None:
    session = remote_session([])
    assert is_connect(session)
    assert ended_with(session) is None
    with_jvm: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=3))
    keep_alive(with_jvm)
    assert count_cores(with_jvm) == 3
