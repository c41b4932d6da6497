"""Nexmark's events come from a seed, and a side is only measured if its answers are the truth."""

from __future__ import annotations

import sys
from contextlib import closing

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from benchmarks.nexmark import main
from benchmarks.nexmark.events import BASE, Events
from benchmarks.nexmark.truth import QUERIES, Truth


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
