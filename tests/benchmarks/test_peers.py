"""Comparisons are of like with like: a peer computes the same windows, and one that can't be had says so."""

from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc
import pytest

from benchmarks.against_flink import write_csv
from benchmarks.events import EventSet
from benchmarks.flink.environment import ENVIRONMENT, flink_python, run_in_flink
from benchmarks.kernels import AGGREGATES, GAP, elements, floor, operator_of
from benchmarks.state_processor import merge
from tidegate.pipelines.errors import UsageError
from tidegate.windowing import EventTimeSessionWindows, Windows
from tidegate.windowing.epochs import Timeline


def test_the_floor_counts_the_sessions_that_the_operator_makes() -> None:
    table = EventSet(5_000, 100).arrays()
    operator, schema = operator_of(Windows(EventTimeSessionWindows.with_gap(GAP), aggregate=AGGREGATES))
    ended = Timeline.of_commits(-(2**63), [(2**62, True)])
    out = operator.run(elements(table), schema.to_table([], 128), ended)
    assert floor(table) == len(out.panes)


@pytest.mark.parametrize(
    ("sessions", "merged"),
    [
        ([(0, 10, 1, 5)], [(0, 10, 1, 5)]),
        ([(10, 20, 1, 2), (0, 10, 1, 5)], [(0, 20, 2, 7)]),
        ([(0, 10, 1, 5), (11, 21, 1, 2)], [(0, 10, 1, 5), (11, 21, 1, 2)]),
        ([(0, 30, 2, 5), (5, 15, 1, 2), (30, 40, 1, 1)], [(0, 40, 4, 8)]),
    ],
)
def test_sessions_by_hand_merge_where_they_touch(sessions: list[tuple[int, int, int, int]], merged: object) -> None:
    assert merge(sessions) == merged


def test_flink_gets_every_event_in_a_file_for_each_task(tmp_path: Path) -> None:
    write_csv(EventSet(1_001, 50), tmp_path / "csv", 250)
    files = sorted((tmp_path / "csv").iterdir())
    assert sum(len(file.read_text().splitlines()) for file in files) == 1_001
    assert len(files) == 2


@pytest.mark.long
def test_flink_computes_the_windows_that_we_do(tmp_path: Path) -> None:
    events = EventSet(20_000, 500)
    write_csv(events, tmp_path / "csv", 20_000)
    lines = run_in_flink("sql_windows", [str(tmp_path / "csv"), "0", "--count"], seconds=300)
    held = {line["job"]: line for line in lines}
    assert held["session"]["windows"] == floor(events.arrays())
    assert {held[kind]["events"] for kind in ("session", "tumbling")} == {20_000}
    assert {held[kind]["total"] for kind in held} == {pc.sum(events.arrays()["value"]).as_py()}


def test_without_flink_the_way_out_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uv = tmp_path / "uv"
    uv.write_text("#!/bin/sh\necho no route to the index >&2\nexit 2\n")
    uv.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    with pytest.raises(UsageError, match=f"no route to the index.*{ENVIRONMENT}"):
        flink_python()


def test_an_environment_with_flink_that_is_named_is_taken_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path))
    assert flink_python() == tmp_path / "bin" / "python"
