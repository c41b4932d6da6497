"""What an epoch costs: constants that a benchmark fitted, and the sum that predicts an epoch of any size from them.

`costs.json` has, by kind of epoch, a constant for each term of a sum: for an event, a window, a file and so on.
`benchmarks.sizes` writes it: it measures small epochs, and `Workload.terms` counts the same terms for the fit as for a
prediction. Processor seconds are those of a machine that needs `trial_seconds` for `seconds_of_trial`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from time import process_time
from typing import Literal, TypeAlias

import numpy as np
import pyarrow as pa

from tidegate.pipelines.engine.base import Engine
from tidegate.pipelines.epoch.exchange import is_exchange_cheaper
from tidegate.pipelines.epoch.operate import EVENTS_COMBINED
from tidegate.pipelines.epoch.shard_state import SHARE, SMALLEST

RunKind: TypeAlias = Literal["backfill", "stream"]
Shape: TypeAlias = Literal["tumbling", "sliding", "session", "row"]
"""What computes the windows: arrays by window, arrays by slice, arrays by session, or row by row."""
Quantity: TypeAlias = Literal["seconds", "driver", "process", "published", "state"]
"""Processor seconds of an epoch; peak bytes of the driver and of the largest process; bytes published and of state."""

Terms: TypeAlias = dict[str, float]

_COMBINED: tuple[Shape, ...] = ("tumbling", "sliding")
"""Shapes whose events become parts of windows where they are read."""

FILE = Path(__file__).with_name("costs.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The size of an epoch.

    Args:
        kind: an interval of a backfill, or an epoch of a stream.
        shape: what computes the windows.
        events: number of events.
        windows: number of windows that fire.
        open: number of rows of the state, which are the open windows or their slices.
        files: number of files that are read.
        commits: number of commits that are read.
        listed: number of files of the source's newest version, which a backfill lists.
        shards: number of shards.
        processes: number of processes among which the events are exchanged; 0 if the driver computes the epoch.
        started: number of these processes that the epoch starts.
        hot: share of the events of the hottest key, if all events of a key must be in memory together; otherwise 0.
    """

    kind: RunKind
    shape: Shape
    events: int
    windows: int
    open: int = 0
    files: int = 1
    commits: int = 1
    listed: int = 0
    shards: int = 1
    processes: int = 0
    started: int = 0
    hot: float = 0.0

    @property
    def largest_shard(self) -> float:
        """Share of the events that are in the largest shard."""
        even = 1 / self.shards
        return self.hot + (1 - self.hot) * even if self.hot > even else even

    @property
    def _exchanged(self) -> int:
        """Number of events, or parts of windows, that are exchanged between processes."""
        if not self.processes:
            return 0
        return min(self.events, self.windows * self.processes) if self.shape in _COMBINED else self.events

    @property
    def is_kept(self) -> bool:
        """True if most rows of the state stay in their files, because few events arrive."""
        return self.open >= self.shards * SMALLEST and self.events * SHARE <= self.open

    def terms(self, quantity: Quantity) -> Terms:
        """Return the counts whose weighted sum is a quantity, by the name of their constant."""
        rows = {f"state row of {self.shape}": 0.0 if self.is_kept else float(self.open)}
        windows = {f"window of {self.shape}": float(self.windows)}
        of_source = {"file": float(self.files), "listed file": float(self.listed)}
        if self.kind == "stream":
            of_source |= {"commit": float(self.commits)}
        if quantity == "published":
            return {"epoch": 1.0, "shard": float(self.shards), **windows}
        if quantity == "state":
            return {"shard": float(self.shards), f"state row of {self.shape}": float(self.open)} if self.open else {}
        if quantity == "seconds":
            return {
                "epoch": 1.0,
                "shard": float(self.shards),
                **of_source,
                "process": float(self.started),
                "exchanged event": float(self._exchanged),
                f"event of {self.shape}": float(self.events),
                **windows,
                **rows,
                "kept state row": float(self.open if self.is_kept else 0),
            }
        # The driver computes an epoch shard by shard, as each process does.
        shard = {f"event of {self.shape}": self.events * self.largest_shard}
        shard |= {name: count / self.shards for name, count in {**windows, **rows}.items()}
        if quantity == "process":
            return {"process": 1.0, **shard} if self.processes else {}
        return {"driver": 1.0, **of_source, **({} if self.processes else shard)}


def processes_of(engine: Engine, shape: Shape, events: int, shards: int, rows: int = 0) -> int:
    """Return the number of processes of an epoch over `rows` rows of the state; 0 if the driver computes it."""
    combines = shape in _COMBINED and not is_exchange_cheaper(events, shards, engine.cores)
    read = -(-events // EVENTS_COMBINED) if combines else events
    return engine.cores if engine.tasks(shards, read + rows) > 1 else 0


@dataclass(frozen=True, slots=True)
class Costs:
    """Constants of the sums, and where they were measured.

    Args:
        measured: day of the measurement, ISO 8601.
        machine: description of the machine.
        trial_seconds: processor seconds of `seconds_of_trial` on that machine.
        constants: by kind of epoch and quantity, the constant of each term: seconds or bytes.
    """

    measured: str
    machine: str
    trial_seconds: float
    constants: Mapping[RunKind, Mapping[Quantity, Terms]]

    def predict(self, work: Workload, quantity: Quantity) -> float:
        """Return a quantity of an epoch, in seconds of the machine that was measured, or in bytes."""
        constants = self.constants[work.kind][quantity]
        return sum(constants.get(name, 0.0) * count for name, count in work.terms(quantity).items())


@cache
def load_costs() -> Costs:
    """Return the constants that this version has."""
    return Costs(**json.loads(FILE.read_text()))


_TRIAL_ROWS, _TRIAL_ROUNDS = 400_000, 3


def seconds_of_trial() -> float:
    """Return the processor seconds that a fixed piece of work takes here: sorting, and grouping in Arrow.

    The shortest of some rounds is returned: other work of the machine only makes them longer.
    """
    numbers = np.random.default_rng(7).integers(0, 1 << 40, _TRIAL_ROWS)
    table = pa.table({"key": numbers % 20_000, "value": numbers})
    took = []
    for _ in range(_TRIAL_ROUNDS):
        began = process_time()
        np.argsort(numbers, kind="stable")
        table.group_by("key", use_threads=False).aggregate([("value", "sum"), ("value", "count")])
        took.append(process_time() - began)
    return min(took)
