"""The promotion of a branch: its results and state become the pipeline's. Starts no JVM."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tidegate.pipelines.definition.branch_settings import differing
from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.definition.load import load_pipeline
from tidegate.pipelines.definition.names import branch_of
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.host import system_clock
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.snapshots.promote import promote as run
from tidegate.pipelines.observe.report.answer import Answer, Shown
from tidegate.pipelines.project.branches import found_branch, said
from tidegate.windowing.time import Millis, show_duration, show_millis


@dataclass(frozen=True, slots=True)
class Promoted(Answer):
    """A branch whose results and state have become the pipeline's.

    Args:
        pipeline: name of the pipeline.
        branch: name of the branch, `PIPELINE@BRANCH`; it stays until it is deleted.
        epoch: epoch of the promotion.
        timeline: its timeline.
        parent: the epoch that the pipeline and the branch share.
        watermark: current watermark of the pipeline, int64 epoch milliseconds.
    """

    pipeline: str
    branch: str
    epoch: int
    timeline: int
    parent: int
    watermark: Millis

    def shown(self) -> Iterator[Shown]:
        yield (
            f"{self.branch} is promoted by epoch {self.epoch} of {self.pipeline}, on timeline {self.timeline}; "
            f"watermark {show_millis(self.watermark)}. Readers of changes get the differing windows as corrections"
        )
        yield f"the branch stays until `tidegate branch {self.pipeline} {branch_of(self.branch)} --delete`"


def promote(config: Config, pipeline: str, branch: str) -> Promoted:
    """Make the results and the state of a branch the pipeline's; errors as for `promote` of the ledger.

    Raises:
        Refused: the code of the pipeline does not have the branch's settings.
    """
    tables, other, note = found_branch(config, pipeline, branch)
    if differ := differing(load_pipeline(config, pipeline), note.settings):
        has = ", ".join(f"{name} {_shown(value)}" for name, value in differ.items())
        raise Refused(
            f"the code of pipeline {pipeline!r} has {has}, but {other.pipeline} was run with {said(note.settings)}. "
            f"First change the code to the settings of the branch and deploy it; then promote"
        )
    with Lease(tables, "promote", system_clock) as ours, Lease(other, "promote", system_clock) as theirs:

        def check() -> None:
            ours.check()
            theirs.check()

        manifest = run(tables, other, note, system_clock(), check)
    assert manifest.parent is not None, "a promotion has the shared epoch as its parent"
    return Promoted(pipeline, other.pipeline, manifest.epoch, manifest.timeline, manifest.parent, manifest.watermark)


def _shown(value: Millis | None) -> str:
    return "none" if value is None else show_duration(value)
