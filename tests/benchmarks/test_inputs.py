"""Benchmarks use the events that they claim to, and include every process and every phase. Nexmark's events come from a
seed, and a system is measured only if its answers are correct. Comparisons are fair: a competitor computes the same
windows, and one that is unavailable is reported as such.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from benchmarks.against_flink import write_csv
from benchmarks.events import START, EventSet, events_of, keys_of_group, one_each
from benchmarks.flink.environment import ENVIRONMENT, flink_python, run_in_flink
from benchmarks.kernels import AGGREGATES, GAP, elements, floor, operator_of
from benchmarks.memory import PeakMemory
from benchmarks.nexmark import main
from benchmarks.nexmark.events import BASE, Events
from benchmarks.nexmark.truth import QUERIES, Truth
from benchmarks.phases import PHASES, Phases, typical
from benchmarks.state_processor import merge
from tidegate.pipelines.errors import UsageError
from tidegate.windowing import EventTimeSessionWindows, Windows
from tidegate.windowing.epochs import Timeline
from tidegate.windowing.keys import KeySchema


def test_the_same_numbers_give_the_same_events() -> None:
    assert EventSet(1_000, 50).arrays().equals(EventSet(1_000, 50).arrays())


def test_pieces_make_up_all_events_in_order_of_arrival() -> None:
    pieces = list(EventSet(1_000, 50, jitter=1).pieces(300))
    assert [len(piece) for piece in pieces] == [300, 300, 300, 100]
    ts = np.concatenate([piece["ts"].to_numpy() for piece in pieces])
    assert (np.diff(ts) >= 0).all()
    assert ts[0] == START


def test_a_hot_key_has_its_share_of_events() -> None:
    keys = EventSet(10_000, 50, hot=0.5).arrays()["key"]
    assert pc.sum(pc.equal(keys, "user-50")).as_py() == pytest.approx(5_000, rel=0.05)


def test_one_each_spreads_events_over_keys() -> None:
    keys = one_each(100, 1_000, START)["key"].to_pylist()
    assert keys == [f"user-{number}" for number in range(0, 1_000, 10)]


def test_the_keys_of_a_group_are_those_that_the_pipeline_puts_there() -> None:
    key = KeySchema.of(key=pa.string())
    numbers = keys_of_group(2_000, 3, 100)
    assert {key.key_group_of(f"user-{number}", 100) for number in numbers} == {3}
    assert 10 <= len(numbers) <= 30
    taken = events_of(numbers, 50, START)["key"].to_pylist()
    assert set(taken) == {f"user-{number}" for number in numbers}
    assert len(taken) == 50


def test_the_memory_of_a_process_that_was_started_is_seen() -> None:
    program = "held = bytearray(100 * 2**20); print('held', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        with PeakMemory() as memory:
            assert child.stdout.readline() == b"held\n"
            memory.look()
        child.stdin.close()
    started = [peak for role, peaks in memory.by_role().items() if role != "driver" for peak in peaks]
    assert max(started) >= 100


def test_every_step_belongs_to_a_phase_and_an_epoch_takes_only_its_own() -> None:
    phases = Phases()
    for step in ("planned", "operated", "committed", "published results", "published late"):
        phases(step)
    of_this, of_the_next = phases.take(), phases.take()
    assert all(of_this[phase] > 0 for phase in PHASES)
    assert not any(of_the_next.values())


def test_a_typical_epoch_is_the_median_of_each_phase() -> None:
    epochs = [dict.fromkeys(PHASES, seconds) for seconds in (1.0, 9.0, 2.0)]
    assert typical(epochs) == dict.fromkeys(PHASES, 2.0)


def run(monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    monkeypatch.setattr(sys, "argv", ["nexmark", "--events=20000", "--per-commit=5000", *options])
    return main()


def test_events_come_from_their_seed_in_the_proportions_of_the_suite() -> None:
    one, same, other = (Events(5000, seed).tables for seed in (1, 1, 2))
    assert {name: len(rows) for name, rows in one.items()} == {"person": 100, "auction": 300, "bid": 4600}
    assert one == same
    assert one != other
    assert all(rows["at"].to_pylist() == sorted(rows["at"].to_pylist()) for rows in one.values())
    bids = one["bid"]
    assert pc.all(pc.is_in(bids["auction"], one["auction"]["id"])).as_py()
    assert pc.mean(pc.equal(bids["auction"], 1200).cast(pa.int8())).as_py() > 0.1, "hot auctions"


@pytest.mark.long
def test_answers_of_tidegate_are_the_truth(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "--queries=q5,q8,q19,cumulate") == 0
    assert capsys.readouterr().out.count("events/s") == 8


@pytest.mark.long
def test_all_answers_are_the_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, "--seed=7") == 0


def test_a_wrong_answer_has_no_time_and_ends_the_run_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(QUERIES, "q11", QUERIES["q11"].replace("count(*)", "count(*) + 1"))
    assert run(monkeypatch, "--queries=q11", "--sides=tidegate") == 1
    shown = capsys.readouterr()
    assert "q11       tidegate        it lacks 374 of 374 rows, such as" in shown.out
    assert "events/s" not in shown.out
    assert shown.err == "wrong answers: q11 on tidegate\n"


def test_answers_are_compared_as_multisets() -> None:
    expected = pa.table({"a": [1, 1, 2], "b": ["x", "x", None]})
    with closing(Truth(Events(1000).tables, BASE)) as truth:
        assert truth.difference(expected, expected.take([2, 0, 1])) == ""
        assert truth.difference(expected, expected.take([0, 2])) == "lacks 1 of 3 rows, such as {'a': 1, 'b': 'x'}"
        assert truth.difference(expected, expected.take([0, 1, 2, 2])).startswith("has in excess 1 of 3 rows")


def test_a_side_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(monkeypatch, "--sides=tidegate,storm")


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize(
    ("side", "missing"),
    [("flink", ["q12"]), ("pyclink", ["q8", "q12"]), ("pathway", ["q12", "q18", "q19", "cumulate"])],
)
def test_a_peer_gives_the_same_answers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], side: str, missing: list[str]
) -> None:
    assert run(monkeypatch, f"--sides={side}", "--deadline=600") == 0
    cells = [line for line in capsys.readouterr().out.splitlines() if f" {side} " in line]
    assert [line.split()[0] for line in cells if "its scan alone" not in line] == missing, cells


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
