"""The costs of an epoch: the fit finds constants, the trials show each of them, and page and files tell the same."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias, get_args

import pytest

from benchmarks.sized_run import Trial
from benchmarks.sizes import (
    BEGIN,
    END,
    PAGE,
    PROVEN,
    Kept,
    Proof,
    figures,
    fit,
    large_trials,
    named,
    small_trials,
    tables,
    write_costs,
)
from tidegate.pipelines.ask.costs import Costs, Quantity, RunKind, Terms, Workload

KINDS: tuple[RunKind, ...] = ("backfill", "stream")
Constants: TypeAlias = dict[RunKind, dict[Quantity, Terms]]


def seconds(work: Workload) -> float:
    """Return made-up costs: 0.1 s for an epoch, and something for each term."""
    return sum((0.1 if name == "epoch" else 1e-4) * count for name, count in work.terms("seconds").items())


def test_the_fit_finds_the_constants_of_a_sum_and_predicts_larger_epochs() -> None:
    measured: dict[RunKind, list[tuple[Workload, dict[Quantity, float]]]] = {
        kind: [
            (trial.work, {name: seconds(trial.work) if name == "seconds" else 1.0 for name in get_args(Quantity)})
            for trial in small_trials(full=True)
            if trial.kind == kind
        ]
        for kind in KINDS
    }
    costs = Costs("2026-11-29", "made up", 1.0, fit(measured))
    for trial in large_trials():
        assert costs.predict(trial.work, "seconds") == pytest.approx(seconds(trial.work), rel=0.02)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("quantity", get_args(Quantity))
def test_each_term_of_a_large_epoch_is_in_a_small_one(full: bool, quantity: Quantity) -> None:
    for kind in KINDS:
        fitted, predicted = (
            {
                name
                for trial in trials
                if trial.kind == kind
                for name, count in trial.work.terms(quantity).items()
                if count
            }
            for trials in (small_trials(full), large_trials(full))
        )
        assert predicted <= fitted


def test_a_large_epoch_has_ten_times_the_size_of_the_largest_small_one() -> None:
    for full in (False, True):
        small, large = list(small_trials(full)), list(large_trials(full))
        for field in ("files", "commits", "shards", "listed", "open"):
            assert max(getattr(each, field) for each in large) == 10 * max(getattr(each, field) for each in small)


def test_an_epoch_over_many_windows_with_few_events_leaves_most_rows_in_their_files() -> None:
    work = Workload(kind="stream", shape="session", events=1_000, windows=0, open=1_000_000, shards=2)
    assert work.is_kept
    assert not replace(work, events=100_000).is_kept
    assert not replace(work, shards=100).is_kept


def test_costs_are_read_as_they_were_written(tmp_path: Path) -> None:
    constants = {kind: {name: {"epoch": 0.25} for name in get_args(Quantity)} for kind in KINDS}
    costs = Costs("2026-11-29", "two cores", 0.04, constants)
    write_costs(costs, tmp_path / "costs.json")
    assert Costs(**json.loads((tmp_path / "costs.json").read_text())) == costs


def test_the_page_has_the_tables_of_the_kept_costs_and_predictions() -> None:
    costs, proofs = Kept().read()
    assert f"{BEGIN}\n\n{tables(costs, proofs)}\n{END}" in PAGE.read_text()


def test_each_prediction_that_is_kept_is_what_the_kept_costs_give() -> None:
    costs, proofs = Kept().read()
    assert [proof.trial for proof in proofs] in ([*large_trials()], [*large_trials(full=True)])
    for proof in proofs:
        for quantity, predicted in proof.predicted.items():
            assert predicted == pytest.approx(costs.predict(proof.trial.work, quantity), rel=0.02)


def test_a_missed_prediction_is_marked(tmp_path: Path) -> None:
    trial = next(large_trials())
    constants: Constants = {kind: {name: {} for name in get_args(Quantity)} for kind in KINDS}
    costs = Costs("2026-11-29", "two cores", 0.04, constants)
    proofs = [Proof(trial, {"seconds": 1.2}, {"seconds": 1.0}), Proof(trial, {"seconds": 0.9}, {"seconds": 1.0})]
    written = tables(costs, proofs)
    assert f"| {named(trial)} | processor time | 1.2 s | 1 s | +20 %: **missed** |" in written
    assert "| 0.9 s | 1 s | -10 % |" in written
    kept = Kept(tmp_path / "costs.json", tmp_path / "sizes.json", tmp_path / "sizes.md")
    kept.page.write_text(f"before\n{BEGIN}\n{END}\nafter\n")
    kept.write(costs, proofs)
    assert kept.read() == (costs, proofs)
    assert kept.page.read_text().startswith("before\n")
    assert kept.page.read_text().endswith("\nafter\n")


@pytest.mark.long
def test_a_prediction_is_written_before_its_epoch_runs(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "costs.json", tmp_path / PROVEN.name, tmp_path / PAGE.name)
    kept.page.write_text(f"{BEGIN}\n{END}\n")
    small = [Trial(kind, "tumbling", events, 50) for kind in KINDS for events in (200, 400)]
    # The larger epoch can't run, so it ends the program after its prediction.
    impossible = replace(small[-1], keys=0)
    with pytest.raises(RuntimeError):
        list(figures(small, [impossible], kept, tmp_path))
    ((proof,),) = (kept.read()[1],)
    assert (proof.trial, proof.measured) == (impossible, None)
    assert proof.predicted["seconds"] > 0
