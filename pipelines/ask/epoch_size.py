"""Predictions of single epochs of a pipeline on this machine: their time, memory and bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tidegate.pipelines.ask.costs import Costs, RunKind, Shape, Workload, processes_of
from tidegate.pipelines.ask.sample import Sampled
from tidegate.pipelines.definition.pipeline import Pipeline, operator_of
from tidegate.pipelines.engine.local import LocalEngine
from tidegate.pipelines.epoch.plan import cut_shards
from tidegate.windowing.columnar.slices import Slicing
from tidegate.windowing.compute import Windows


@dataclass(frozen=True, slots=True)
class EpochSize:
    """What an epoch would need.

    Args:
        epoch: what the epoch reads.
        kind: `backfill` or `stream`.
        events: number of its events.
        commits: number of commits that it reads.
        files: number of files that it reads.
        windows: number of windows that fire.
        shards: number of its shards.
        processor_seconds: processor time of all processes.
        seconds: time on the cores of this machine.
        driver_bytes: peak memory of the driver.
        process_bytes: peak memory of each process of the engine; None if the driver computes the epoch.
        published_bytes: bytes that it adds to the published tables.
    """

    epoch: str
    kind: RunKind
    events: int
    commits: int
    files: int
    windows: int
    shards: int
    processor_seconds: float
    seconds: float
    driver_bytes: int
    process_bytes: int | None
    published_bytes: int


@dataclass(frozen=True, slots=True)
class Predictor:
    """Predicts epochs of a pipeline on this machine.

    Args:
        costs: the constants.
        slower: how many times as long as the machine of the constants this one takes.
        engine: the local engine, which says where an epoch of some size is computed.
        pipeline: the pipeline.
        sampled: a sample of its source.
        shape: what computes its windows.
        files: number of files of the source.
    """

    costs: Costs
    slower: float
    engine: LocalEngine
    pipeline: Pipeline
    sampled: Sampled
    shape: Shape
    files: int

    def epoch(
        self,
        name: str,
        kind: RunKind,
        events: int,
        commits: int,
        files: int,
        shards: int | None = None,
    ) -> EpochSize:
        """Return what an epoch needs. A small number of `shards` is raised as in a plan."""
        work = self.work(kind, events, commits, files, shards)
        seconds = self.slower * self.costs.predict(work, "seconds")
        # What depends on neither events nor windows is done by the driver.
        alone = replace(work, events=0, windows=0, open=0, started=0, shards=0)
        in_driver = self.slower * self.costs.predict(alone, "seconds")
        at_once = min(work.shards, work.processes, 1 / work.largest_shard) or 1
        return EpochSize(
            epoch=name,
            kind=kind,
            events=events,
            commits=commits,
            files=files,
            windows=work.windows,
            shards=work.shards,
            processor_seconds=seconds,
            seconds=in_driver + (seconds - in_driver) / at_once,
            driver_bytes=round(self.costs.predict(work, "driver")),
            process_bytes=round(self.costs.predict(work, "process")) if work.processes else None,
            published_bytes=round(self.costs.predict(work, "published")),
        )

    def work(self, kind: RunKind, events: int, commits: int, files: int, shards: int | None = None) -> Workload:
        """Return the size of an epoch."""
        wanted = shards or self.pipeline.parallelism or self.engine.cores
        most = self.pipeline.max_parallelism
        open_ = (self.sampled.open or 0) if kind == "stream" else 0
        cut = len(cut_shards(min(wanted, most), most, events + open_))
        processes = processes_of(self.engine, self.shape, events, cut, open_)
        return Workload(
            kind=kind,
            shape=self.shape,
            events=events,
            windows=round(events * (self.sampled.windows_per_row or 0)),
            open=open_,
            files=files,
            commits=commits,
            listed=self.files if kind == "backfill" else 0,
            shards=cut,
            processes=processes,
            started=processes if kind == "backfill" else 0,
            hot=self.sampled.hot[0].share if self.sampled.hot and self.shape in ("session", "row") else 0.0,
        )

    def peak(self, epoch: EpochSize) -> int:
        """Return the memory of all processes of an epoch."""
        return epoch.driver_bytes + (epoch.process_bytes or 0) * self.engine.cores

    def largest(self, kind: RunKind, budget: int) -> int:
        """Return the number of events whose epoch stays within some memory, to two digits."""
        least, most = 1, 10**10
        while least * 1.05 < most:
            middle = round((least * most) ** 0.5)
            is_within = self.peak(self.epoch("", kind, middle, 1, 1)) <= budget
            least, most = (middle, most) if is_within else (least, middle)
        return int(float(f"{least:.1e}"))


def shape_of(pipeline: Pipeline) -> Shape:
    choice = operator_of(pipeline)
    if not choice.columnar or not isinstance(pipeline.compute, Windows):
        return "row"
    if pipeline.compute.assigner.merges:
        return "session"
    return "sliding" if isinstance(choice.slicing, Slicing) else "tumbling"
