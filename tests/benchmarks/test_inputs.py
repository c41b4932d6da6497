"""Benchmarks run on the events that they say, and see every process and every phase."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from benchmarks.events import START, EventSet, events_of, keys_of_group, one_each
from benchmarks.memory import PeakMemory
from benchmarks.phases import PHASES, Phases, typical
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
