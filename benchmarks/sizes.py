"""Fit what an epoch costs on small epochs, predict epochs of ten times the size, then run these and compare.

    python -m benchmarks.sizes [--full] [--write] [--resume] [--json FILE]

Each epoch runs in a process of its own, on the local engine. The constants are kept in `pipelines/ask/costs.json`, from
which `tidegate size` predicts, and the predictions with their outcomes in `docs/operations/sizes.json`: a prediction is
written there before its epoch runs. The tables of docs/operations/sizes.md come from these two files. Without --write
nothing is kept.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import get_args

import numpy as np

from benchmarks.figures import Figure, Wanted, tell
from benchmarks.machine import describe_machine
from benchmarks.sized_run import Seen, Trial, run
from tidegate.pipelines.ask.costs import FILE, Costs, Quantity, RunKind, Shape, Terms, Workload
from tidegate.pipelines.epoch.shard_state import SHARE

PAGE = Path("docs/operations/sizes.md")
PROVEN = Path("docs/operations/sizes.json")
BEGIN, END = "<!-- Measured by python -m benchmarks.sizes: begin -->", "<!-- end -->"

ERROR = Wanted("at most", 15)
"""Bound on the error of a prediction, per cent."""

_KINDS: tuple[RunKind, ...] = ("backfill", "stream")
_MANY: dict[Shape, int] = {"tumbling": 200_000, "sliding": 200_000, "session": 90_000, "row": 8_000}
"""Largest number of events of a small epoch by shape. The driver computes ten times as many, too."""
_MOVED = 1_100_000
"""Events of sessions that processes compute."""
_ROUNDS = 5_000
"""Rounds of the fit."""


def small_trials(full: bool = False) -> Iterator[Trial]:
    """Yield the epochs that the constants are fitted on. Each term differs much between two of them."""
    for kind in _KINDS:
        plain = Trial(kind, "tumbling", 5_000, 500)
        for shape, events in _MANY.items():
            yield replace(plain, shape=shape, events=events // 10, keys=events // 100)
            yield replace(plain, shape=shape, events=events, keys=events // 100)
            yield replace(plain, shape=shape, events=events, keys=events // 2)
        yield replace(plain, files=40)
        yield replace(plain, shards=24)
        if kind == "backfill":
            yield replace(plain, listed=2_000)
            for shards in (2, 16):
                yield replace(plain, events=_MOVED, keys=11_000, shape="session", shards=shards)
            yield replace(plain, events=2 * _MOVED, keys=11_000, shape="session")
            if full:
                yield replace(plain, events=_MOVED, keys=110_000, shape="session")
        else:
            yield replace(plain, commits=20)
            for shape in _MANY:
                yield replace(plain, shape=shape, open=3_000 if shape == "row" else 30_000)
            yield replace(plain, events=1_000, shape="session", open=140_000)


def large_trials(full: bool = False) -> Iterator[Trial]:
    """Yield epochs of ten times the size of the largest small one, in each direction."""
    for kind in _KINDS:
        plain = Trial(kind, "tumbling", 5_000, 500)
        for shape, events in _MANY.items():
            yield replace(plain, shape=shape, events=10 * events, keys=events // 10)
        yield replace(plain, events=10 * _MANY["tumbling"], keys=5 * _MANY["tumbling"])
        yield replace(plain, files=400)
        yield replace(plain, shards=240)
        if kind == "backfill":
            yield replace(plain, listed=20_000)
            if full:
                yield replace(plain, events=5_000_000, keys=50_000)
                yield replace(plain, events=10 * _MOVED, keys=110_000, shards=8, shape="session")
                yield replace(plain, events=10 * _MOVED, keys=1_100_000, shards=8, shape="session")
        else:
            yield replace(plain, commits=200)
            yield replace(plain, events=20_000, open=300_000)
            yield replace(plain, shape="session", events=20_000, open=300_000)
            yield replace(plain, events=1_000, shape="session", open=1_400_000)


@dataclass(frozen=True)
class Proof:
    """A prediction, and what was measured afterwards; None before. Seconds are those of the machine of the fit."""

    trial: Trial
    predicted: Mapping[Quantity, float]
    measured: Mapping[Quantity, float] | None = None

    def error(self, quantity: Quantity) -> float:
        """Return the error in per cent of what was measured."""
        assert self.measured is not None
        return 100 * (self.predicted[quantity] / self.measured[quantity] - 1)


@dataclass(frozen=True)
class Kept:
    """The files that keep constants and predictions, and the page with their tables."""

    costs: Path = FILE
    proven: Path = PROVEN
    page: Path = PAGE

    def write(self, costs: Costs, proofs: Sequence[Proof]) -> None:
        """Write all of them."""
        write_costs(costs, self.costs)
        self.proven.write_text(json.dumps([asdict(proof) for proof in proofs], indent=1) + "\n")
        before, rest = self.page.read_text().split(BEGIN)
        self.page.write_text(f"{before}{BEGIN}\n\n{tables(costs, proofs)}\n{END}{rest.split(END)[1]}")

    def read(self) -> tuple[Costs, list[Proof]]:
        """Return the constants and the predictions."""
        proofs = json.loads(self.proven.read_text())
        return Costs(**json.loads(self.costs.read_text())), [
            Proof(Trial(**each["trial"]), each["predicted"], each["measured"]) for each in proofs
        ]


def seen_of(trial: Trial, within: Path, trial_seconds: float | None = None) -> dict[Quantity, float]:
    """Run a trial; return its quantities, with the seconds of a machine that needs `trial_seconds`.

    Raises:
        RuntimeError: the epoch fired, or kept, other windows than the trial says.
    """
    seen, work = run(trial, within), trial.work
    # Some rows that are kept in their file are in a delta, too.
    most = work.open + work.open // SHARE * 2 if work.is_kept else work.open
    if seen.windows != work.windows or not work.open <= seen.rows <= most:
        raise RuntimeError(f"{trial}: {seen} instead of {work.windows} windows and {work.open} rows of state")
    return quantities(seen, trial_seconds or seen.trial_seconds)


def quantities(seen: Seen, trial_seconds: float) -> dict[Quantity, float]:
    """Return the quantities of an epoch, with the seconds of a machine that needs `trial_seconds`."""
    return {
        "seconds": seen.seconds * trial_seconds / seen.trial_seconds,
        "driver": seen.driver,
        "process": seen.process,
        "published": seen.published,
        "state": seen.state,
    }


def fitted(trials: Iterable[Trial], within: Path) -> Costs:
    """Run trials, and return the constants that fit them best."""
    measured: dict[RunKind, list[tuple[Workload, dict[Quantity, float]]]] = {"backfill": [], "stream": []}
    trial_seconds: float | None = None
    for trial in trials:
        if trial_seconds is None:
            trial_seconds = run(trial, within).trial_seconds
        seen = seen_of(trial, within, trial_seconds)
        print(f"{trial}: {seen['seconds']:.3f} s", flush=True)
        measured[trial.kind].append((trial.work, seen))
    assert trial_seconds is not None
    constants = fit(measured)
    # A stream exchanges events as a backfill does; its processes are running already.
    for name in ("exchanged event", "process"):
        constants["stream"]["seconds"].setdefault(name, constants["backfill"]["seconds"].get(name, 0.0))
    constants["stream"]["process"] = constants["backfill"]["process"]
    return Costs(datetime.now(UTC).date().isoformat(), describe_machine(), trial_seconds, constants)


def fit(
    measured: Mapping[RunKind, Sequence[tuple[Workload, Mapping[Quantity, float]]]],
) -> dict[RunKind, dict[Quantity, Terms]]:
    """Return the constants, at least 0, whose sums have the smallest relative errors over some measured epochs."""
    return {
        kind: {
            quantity: _least_squares([(work.terms(quantity), seen[quantity]) for work, seen in epochs])
            for quantity in get_args(Quantity)
        }
        for kind, epochs in measured.items()
    }


def _least_squares(measured: list[tuple[Terms, float]]) -> Terms:
    """Return non-negative constants by coordinate descent over the squares of the relative errors."""
    measured = [(terms, value) for terms, value in measured if terms and value > 0]
    names = sorted({name for terms, _ in measured for name, count in terms.items() if count})
    if not names:
        return {}
    matrix = np.array([[terms.get(name, 0.0) / value for name in names] for terms, value in measured])
    scale = np.linalg.norm(matrix, axis=0)
    matrix /= scale
    products, wanted = matrix.T @ matrix, matrix.sum(axis=0)
    found = np.zeros(len(names))
    for _ in range(_ROUNDS):
        for place in range(len(names)):
            rest = wanted[place] - products[place] @ found + found[place]
            found[place] = max(0.0, rest)
    return dict(zip(names, (found / scale).tolist(), strict=True))


def write_costs(costs: Costs, file: Path) -> None:
    """Write the constants, with three digits."""
    values = asdict(costs)
    values["constants"] = {
        kind: {
            quantity: {name: float(f"{value:.3g}") for name, value in terms.items()}
            for quantity, terms in quantities.items()
        }
        for kind, quantities in costs.constants.items()
    }
    file.write_text(json.dumps(values, indent=1) + "\n")


def figures(trials: Sequence[Trial], larger: Sequence[Trial], kept: Kept | None, within: Path) -> Iterator[Figure]:
    """Fit constants on trials, write the predictions for larger ones, then run these and yield the errors."""
    costs = fitted(trials, within)
    proofs = [Proof(trial, {name: costs.predict(trial.work, name) for name in _PROVEN}) for trial in larger]
    if kept is not None:
        kept.write(costs, proofs)
    yield from proven(costs, proofs, kept, within)


def proven(costs: Costs, proofs: list[Proof], kept: Kept | None, within: Path) -> Iterator[Figure]:
    """Run the epochs of predictions that were not measured yet, and yield the errors."""
    for number, proof in enumerate(proofs):
        if proof.measured is not None:
            continue
        seen = seen_of(proof.trial, within, costs.trial_seconds)
        proofs[number] = proof = replace(proof, measured={name: seen[name] for name in _PROVEN if seen[name]})
        if kept is not None:
            kept.write(costs, proofs)
        assert proof.measured is not None
        for quantity, value in proof.measured.items():
            shown = f"predicted {shown_as(quantity, proof.predicted[quantity])}, measured {shown_as(quantity, value)}"
            yield Figure(
                f"{named(proof.trial)}: error of {_TITLES[quantity]}", abs(proof.error(quantity)), "%", ERROR, shown
            )


_PROVEN: tuple[Quantity, ...] = ("seconds", "driver", "process", "published", "state")
_TITLES: dict[Quantity, str] = {
    "seconds": "processor time",
    "driver": "memory of the driver",
    "process": "memory of a process",
    "published": "published bytes",
    "state": "bytes of state",
}


def named(trial: Trial) -> str:
    """Return what a trial does, in words."""
    words = [f"{trial.kind}, {_SHAPES[trial.shape]}, {trial.events:,} events of {trial.keys:,} keys"]
    words += [f"{trial.open:,} open windows"] if trial.open else []
    words += [f"{trial.files} files" for _ in range(trial.files > 1)]
    words += [f"{trial.commits} commits" for _ in range(trial.commits > 1)]
    words += [f"{trial.shards} shards" for _ in range(trial.shards > 2)]
    words += [f"{trial.listed:,} other files" for _ in range(trial.listed > 0)]
    return ", ".join(words)


_SHAPES = {"tumbling": "tumbling", "sliding": "sliding", "session": "sessions", "row": "row by row"}


def shown_as(quantity: Quantity, value: float) -> str:
    """Return a quantity with its unit."""
    if quantity == "seconds":
        return f"{value:.3g} s"
    return f"{value / 2**20:,.0f} MiB" if quantity in ("driver", "process") else f"{value / 1000:,.0f} kB"


def tables(costs: Costs, proofs: Sequence[Proof]) -> str:
    """Return the tables of the page."""
    where = f"Constants measured on {costs.measured}, on {costs.machine}:"
    lines = [textwrap.fill(where, 120, break_long_words=False, break_on_hyphens=False), ""]
    lines += ["| processor time | backfill | stream |", "|---|---:|---:|"]
    constants = costs.constants
    names = dict.fromkeys(name for kind in constants.values() for name in kind["seconds"])
    lines += [
        f"| {name} | {' | '.join(_seconds(constants[kind]['seconds'].get(name)) for kind in constants)} |"
        for name in names
    ]
    lines += ["", "| bytes | of | backfill | stream |", "|---|---|---:|---:|"]
    for quantity in _PROVEN[1:]:
        of_terms: list[Terms] = [kind[quantity] for kind in constants.values()]
        for name in dict.fromkeys(name for terms in of_terms for name in terms):
            cells = " | ".join(_bytes(terms.get(name)) for terms in of_terms)
            lines.append(f"| {_TITLES[quantity]} | {name} | {cells} |")
    lines += ["", "Predictions, written before the epochs ran, and outcomes:", ""]
    lines += ["| epoch | quantity | predicted | measured | error |", "|---|---|---:|---:|---:|"]
    for proof in proofs:
        if proof.measured is None:
            predicted = shown_as("seconds", proof.predicted["seconds"])
            lines.append(f"| {named(proof.trial)} | {_TITLES['seconds']} | {predicted} | not measured | |")
            continue
        for quantity in proof.measured:
            values = (shown_as(quantity, of[quantity]) for of in (proof.predicted, proof.measured))
            error = proof.error(quantity)
            missed = "" if ERROR.is_met_by(abs(error)) else ": **missed**"
            lines.append(
                f"| {named(proof.trial)} | {_TITLES[quantity]} | {' | '.join(values)} | {error:+.0f} %{missed} |"
            )
    return "\n".join(lines) + "\n"


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value * 1000:.3g} ms" if value >= 1e-4 else f"{value * 1e6:.3g} us"


def _bytes(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value / 2**20:,.0f} MiB" if value >= 2**20 else f"{value:,.0f}"


def main() -> None:
    """Print the errors of the predictions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="also epochs of 11 million events")
    parser.add_argument("--write", action="store_true", help="keep constants, predictions and the page's tables")
    parser.add_argument("--resume", action="store_true", help="only measure the kept predictions that lack it")
    parser.add_argument("--within", type=Path, help="folder for the data")
    parser.add_argument("--json", type=Path, help="file for the figures, one a line")
    options = parser.parse_args()
    small, large = list(small_trials(options.full)), list(large_trials(options.full))
    kept = Kept() if options.write else None
    with TemporaryDirectory(dir=options.within) as folder:
        if options.resume:
            tell(proven(*Kept().read(), kept, Path(folder)), options.json)
        else:
            tell(figures(small, large, kept, Path(folder)), options.json)


if __name__ == "__main__":
    main()
