"""A report shows every figure beside what is wanted of it, and keeps what was not measured again."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.figures import Figure, Wanted, ratio, tell
from benchmarks.report import Report, Section


def section(*figures: Figure, failure: str = "") -> Section:
    return Section("Beside a peer", "python -m benchmarks.peer", "2026-11-21", "2 cores", 0.25, figures, failure)


def growth(*sizes: int) -> tuple[Figure, ...]:
    return tuple(Figure("backfill by events", size / 1e6, "s", size=size) for size in sizes)


def test_a_ratio_says_how_many_times_as_fast_we_are_and_what_it_came_from() -> None:
    figure = ratio("batch", ours=2, theirs=9, peer="Spark", wanted=2.5)
    assert (figure.value, figure.is_reached) == (4.5, True)
    assert figure.detail == "ours 2.00 s, Spark 9.00 s"


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
    assert "other work had 25% of the cores when it began" in page
    assert "| batch, session windows, beside Spark | 2.00 x | at least 2.5: **missed** |" in page
    assert "| backfill by events: 5,000,000 | 5.00 s |" in page
    for plot in ("quick-ratios.svg", "quick-growth.svg"):
        assert f"]({plot})" in page
        assert "<svg" in (tmp_path / plot).read_text()


def test_a_program_that_failed_is_in_the_page_with_what_it_measured_before(tmp_path: Path) -> None:
    Report(tmp_path, "full").write({"peer": section(*growth(7), failure="exit code 1")})
    page = (tmp_path / "full.md").read_text()
    assert "| backfill by events: 7 |" in page
    assert "It did not end well: exit code 1" in page


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
