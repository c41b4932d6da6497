"""`python -m benchmarks` runs every program in a process of its own and writes the page after each."""

from __future__ import annotations

import importlib
import sys

import pytest

from benchmarks.__main__ import PROGRAMS, Program, run


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


def test_a_program_that_fails_is_told_as_failed() -> None:
    section = run(Program("One process", "open_windows"), ("--windows=none",), limit=60)
    assert (section.figures, section.failure) == ((), "exit code 2")


def test_a_program_that_hangs_is_ended_and_told() -> None:
    section = run(Program("One process", "open_windows"), ("--windows=1000000",), limit=0.1)
    assert (section.figures, section.failure) == ((), "not done after 0 seconds")
