"""The latency program: which results show a commit first, and a short run of its own side.

The long stream's figures, and a stream of two minutes that keeps up and stays as small as it was. The row operator
stays fast and small: ceilings three times as wide as what the benchmark shows. `python -m benchmarks` runs every
program in a process of its own and writes the page after each. A report shows every figure beside what is wanted of it,
and keeps what was not measured again.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

from benchmarks import row_operator
from benchmarks.__main__ import PROGRAMS, Program, run
from benchmarks.figures import Figure, Wanted, ratio, tell
from benchmarks.latency import P50, P99, Visible, figures, latencies, ours, visible_batches, visible_epochs
from benchmarks.long_stream import Poll, measure
from benchmarks.long_stream import figures as figures_of_looks
from benchmarks.report import Report, Section
from tests.lake import LOCAL, Lake, at, hourly_pipeline
from tidegate.pipelines.definition import epochs
from tidegate.pipelines.definition.config.opened import warehouse_of


def test_a_commit_is_visible_with_the_first_results_that_contain_it() -> None:
    committed = {1: 1_000, 2: 1_500, 3: 2_000, 4: 2_500}
    visible = [Visible(2, 1_900), Visible(2, 2_100), Visible(3, 4_000)]
    assert latencies(committed, visible, since=0) == [0.9, 0.4, 2.0], "nobody has seen the last commit yet"
    assert latencies(committed, visible, since=1_500) == [0.4, 2.0]


def test_the_percentiles_stand_beside_their_bounds() -> None:
    half, most = figures("Tidegate", 20_000, [0.5] * 98 + [3.0] * 2, engine="spark")
    assert (half.value, half.wanted, half.is_reached) == (0.5, P50["spark"], True)
    assert (most.wanted, most.is_reached) == (P99, False)
    assert not next(iter(figures("Tidegate", 20_000, [], engine="spark"))).is_reached, "nothing became visible"


def test_an_epoch_is_visible_when_all_of_it_is_published(tmp_path: Path) -> None:
    lake, pipeline = Lake(tmp_path), hourly_pipeline()
    for hour in (10, 11, 12):
        lake.append(("ann", at(f"{hour}:00"), 1))
    lake.stream(LOCAL, pipeline, commits=2)
    tables = lake.tables(pipeline)
    assert [seen.version for seen in visible_epochs(tables)] == [1, 2]
    tables.open(epochs.NAME).create_checkpoint()
    Path(tables.path(epochs.NAME), "_delta_log", f"{1:020d}.json").unlink()
    with pytest.raises(RuntimeError, match="the commits of 1 epochs were cleaned up, from epoch 1 on"):
        visible_epochs(tables)


def test_a_batch_of_spark_is_visible_when_its_sink_has_it(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    log, checkpoint = Path(lake.path("windows"), "_delta_log"), tmp_path / "checkpoint"
    log.mkdir(parents=True)
    (checkpoint / "offsets").mkdir(parents=True)
    for batch, (reached, index, time) in enumerate([(3, -1, 700), (4, 0, 900)]):
        offset = {"reservoirVersion": reached, "index": index}
        (checkpoint / "offsets" / str(batch)).write_text("\n".join(["v1", "{}", json.dumps(offset)]))
        actions = [{"commitInfo": {"timestamp": time}}, {"txn": {"appId": "query", "version": batch}}]
        (log / f"{batch + 1:020d}.json").write_text("\n".join(map(json.dumps, actions)))
    (log / f"{0:020d}.json").write_text(json.dumps({"commitInfo": {"timestamp": 1}}))
    seen = visible_batches(warehouse_of(lake.config), lake.path("windows"), checkpoint)
    assert seen == [Visible(2, 700), Visible(4, 900)]


@pytest.mark.spark
@pytest.mark.long
def test_a_short_run_at_1_000_events_a_second_shows_its_commits(tmp_path: Path) -> None:
    seconds = ours(tmp_path, rate=1_000, seconds=30, interval="100ms", engine="spark")
    assert len(seconds) > 10
    assert sorted(seconds)[len(seconds) // 2] < 3 * P50["spark"].value


def looks(count: int, lag: float = 2.0, files: int = 50, driver: float = 200.0, from_second: int = 0) -> list[Poll]:
    memory = {"driver": driver, "JVM": 700.0, "worker": 500.0}
    return [Poll(from_second + at, lag, memory, files) for at in range(count)]


def test_what_stays_as_it_was_is_within_the_bound() -> None:
    told = figures_of_looks(looks(90))
    assert [figure.what.rpartition(": ")[2] for figure in told] == [
        "lag",
        "files",
        "memory, driver",
        "memory, JVM",
        "memory, worker",
    ]
    assert all(figure.value == 1 and figure.is_reached for figure in told)


def test_what_grows_in_the_last_third_is_told() -> None:
    told = figures_of_looks([*looks(600), *looks(300, lag=9.0, files=61, driver=230.0, from_second=600)])
    assert [figure.is_reached for figure in told] == [False, False, True, True, True]
    assert "middle third 2.0, last third 9.0 s" in told[0].detail


def test_a_short_run_says_nothing_of_files() -> None:
    assert figures_of_looks([*looks(60), *looks(30, files=99)])[1].wanted is None


@pytest.mark.spark
@pytest.mark.long
def test_a_stream_of_two_minutes_at_20_000_events_a_second_keeps_up_and_stays_small(tmp_path: Path) -> None:
    """The full half hour is `python -m benchmarks.long_stream`. Medians over two minutes are rough, so the bounds are
    wide.
    """
    seen = measure(seconds=120, rate=20_000, interval="1s", folder=tmp_path)
    last = seen[2 * len(seen) // 3 :]
    assert max(look.lag for look in last) < 45
    assert max(look.files for look in last) < 400
    for role in ("driver", "worker"):
        assert max(look.memory[role] for look in last) < 1.5 * max(look.memory[role] for look in seen[: len(seen) // 2])
    # A JVM uses as much of its allowed heap as it likes: 1 GiB here, plus half as much outside the heap.
    assert max(look.memory["JVM"] for look in last) < 1536


TIMES_BARE = {"tumbling sum": 16, "sessions": 27}
"""The time of each workload as a multiple of a bare dict loop, as benchmarks/row_operator.py measures it."""

BYTES_AT_MOST = 1024


@pytest.mark.long
@pytest.mark.parametrize("workload", TIMES_BARE)
def test_windows_cost_at_most_three_times_what_was_measured_over_a_bare_loop(workload: str) -> None:
    elements = row_operator.elements_of_a_day(50_000, 5_000)
    ratios = [row_operator.measure_speed(row_operator.WORKLOADS[workload], elements).times_bare for _ in range(3)]
    assert min(ratios) < 3 * TIMES_BARE[workload]


@pytest.mark.long
@pytest.mark.parametrize("workload", TIMES_BARE)
def test_an_open_window_takes_at_most_a_kibibyte(workload: str) -> None:
    assert row_operator.bytes_per_open_window(row_operator.WORKLOADS[workload], 20_000) <= BYTES_AT_MOST


def test_the_benchmark_computes_what_the_bare_loop_computes() -> None:
    elements = row_operator.elements_of_a_day(5_000, 100)
    assert row_operator.run(row_operator.WORKLOADS["tumbling sum"], elements) == row_operator.bare_loop(elements)


@pytest.mark.parametrize(
    ("module", "form"),
    [(program.module, form) for program in PROGRAMS.values() for form in (program.quick, program.full) if form],
)
def test_every_program_takes_what_its_forms_tell_it(
    module: str, form: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = importlib.import_module(f"benchmarks.{module}")
    monkeypatch.setattr(sys, "argv", [module, *form, "--json", "figures", "--help"])
    with pytest.raises(SystemExit, match="0"):
        program.main()
    assert "--json" in capsys.readouterr().out


def test_a_program_is_run_with_its_figures_kept() -> None:
    section = run(Program("One process", "open_windows"), ("--windows=2000",), limit=60)
    assert [figure.unit for figure in section.figures] == ["s", "s", "s"]
    assert section.command == "python -m benchmarks.open_windows --windows=2000"
    assert section.failure == ""


@pytest.mark.long
def test_a_program_that_fails_is_told_as_failed() -> None:
    section = run(Program("One process", "open_windows"), ("--windows=none",), limit=60)
    assert (section.figures, section.failure) == ((), "exit code 2")


def test_a_program_that_hangs_is_ended_and_told() -> None:
    section = run(Program("One process", "open_windows"), ("--windows=1000000",), limit=0.1)
    assert (section.figures, section.failure) == ((), "not finished after 0 seconds")


def section(*figures: Figure, failure: str = "") -> Section:
    return Section("Beside a peer", "python -m benchmarks.peer", "2026-11-21", "2 cores", 0.25, figures, failure)


def growth(*sizes: int) -> tuple[Figure, ...]:
    return tuple(Figure("backfill by events", size / 1e6, "s", size=size) for size in sizes)


def test_a_ratio_says_how_many_times_as_fast_we_are_and_what_it_came_from() -> None:
    figure = ratio("batch", ours=2, theirs=9, peer="Spark", wanted=2.5)
    assert (figure.value, figure.is_reached) == (4.5, True)
    assert figure.detail == "Tidegate 2.00 s, Spark 9.00 s"


@pytest.mark.parametrize(("bound", "reached"), [("at least", False), ("at most", True)])
def test_a_bound_holds_on_its_own_side_only(bound: str, reached: bool) -> None:
    assert Figure("epoch", 0.4, "s", Wanted(bound, 0.5)).is_reached is reached


def test_a_bound_that_is_no_bound_is_refused() -> None:
    with pytest.raises(ValueError, match="'about'"):
        Wanted("about", 3)


def test_the_page_has_the_machine_and_each_figure_beside_what_is_wanted(tmp_path: Path) -> None:
    missed = ratio("batch, session windows", ours=2, theirs=4, peer="Spark", wanted=2.5)
    Report(tmp_path, "quick").write({"peer": section(missed, *growth(1_000_000, 5_000_000))})
    page = (tmp_path / "quick.md").read_text()
    assert "Measured on 2 cores." in page
    assert "other work used 25% of the cores at the start" in page
    assert "| batch, session windows, vs. Spark | 2.00 x | at least 2.5: **missed** |" in page
    assert "| backfill by events: 5,000,000 | 5.00 s |" in page
    for plot in ("quick-ratios.svg", "quick-growth.svg"):
        assert f"]({plot})" in page
        assert "<svg" in (tmp_path / plot).read_text()


def test_a_program_that_failed_is_in_the_page_with_what_it_measured_before(tmp_path: Path) -> None:
    Report(tmp_path, "full").write({"peer": section(*growth(7), failure="exit code 1")})
    page = (tmp_path / "full.md").read_text()
    assert "| backfill by events: 7 |" in page
    assert "The program failed: exit code 1" in page


def test_what_is_not_measured_again_stays_as_it_was(tmp_path: Path) -> None:
    report = Report(tmp_path, "full")
    written = {"peer": section(ratio("batch", 1, 2, "Spark", 2.5)), "growth": section(*growth(1, 10))}
    report.write(written)
    assert report.read() == written


def test_figures_are_told_as_they_come_and_kept_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "figures"
    tell(iter([ratio("batch", ours=3, theirs=3, peer="Spark", wanted=2.5)]), file)
    assert "1.00 x  at least 2.5 (not reached)" in capsys.readouterr().out
    assert len(file.read_text().splitlines()) == 1
