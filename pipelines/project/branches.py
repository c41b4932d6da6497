"""Branches: copies of a pipeline with other settings, which run alongside it, and their promotion. Starts no JVM."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from tidegate.pipelines.definition.branch_settings import check_setting, differing, with_settings
from tidegate.pipelines.definition.branches import BranchNote, branches_of, no_branch, read_note
from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.definition.config.opened import warehouse_of
from tidegate.pipelines.definition.load import load_pipeline
from tidegate.pipelines.definition.names import branch_of, check_name, pipeline_of
from tidegate.pipelines.errors import Refused, UsageError
from tidegate.pipelines.ledger.backups.renamed import make_branch, remove_branch, remove_folder
from tidegate.pipelines.ledger.host import system_clock
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.snapshots.head import require_snapshot
from tidegate.pipelines.ledger.snapshots.promote import promote as run
from tidegate.pipelines.ledger.snapshots.published import require_published, settled_watermark
from tidegate.pipelines.ledger.snapshots.savepoint import find_snapshot
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.observe.report.answer import Answer, Grid, Shown
from tidegate.pipelines.project.given import Length, lengths_of
from tidegate.pipelines.run.work_folder import FilesOfRuns
from tidegate.windowing.time import Millis, show_duration, show_millis

_COLUMNS = ("name", "settings", "of epoch", "epoch", "watermark", "created (UTC)")


@dataclass(frozen=True, slots=True)
class Branch(Answer):
    """A branch of a pipeline.

    Args:
        name: name of the branch, `PIPELINE@BRANCH`, under which every command accepts it.
        settings: the changed settings by name, milliseconds.
        of_epoch: the epoch of the pipeline whose snapshot it started from.
        epoch: its newest published epoch.
        watermark: the watermark of its results, int64 epoch milliseconds.
        created_at: int64 epoch milliseconds.
    """

    pipeline: str
    name: str
    settings: dict[str, Millis]
    of_epoch: int
    epoch: int
    watermark: Millis
    created_at: Millis

    def shown(self) -> Iterator[Shown]:
        yield (
            f"branch {self.name} begins at epoch {self.of_epoch} of {self.pipeline}, with {said(self.settings)}. "
            f"{self.pipeline} is unchanged"
        )
        yield f"run it like a pipeline: `tidegate stream {self.name} --available-now`"


@dataclass(frozen=True, slots=True)
class Branches(Answer):
    """The branches of a pipeline by name.

    Args:
        branches: the complete branches.
        broken: names of the incomplete branches, whose creation or deletion was interrupted.
    """

    pipeline: str
    branches: tuple[Branch, ...]
    broken: tuple[str, ...] = ()

    main: ClassVar[str] = "branches"

    def shown(self) -> Iterator[Shown]:
        rows = [
            (
                each.name,
                said(each.settings),
                each.of_epoch,
                each.epoch,
                show_millis(each.watermark),
                show_millis(each.created_at),
            )
            for each in self.branches
        ]
        yield Grid(f"branches of {self.pipeline}", _COLUMNS, rows, _COLUMNS[2:4])
        for name in self.broken:
            yield f"{name} is incomplete: `tidegate branch {self.pipeline} {branch_of(name)} --delete` removes it"


@dataclass(frozen=True, slots=True)
class BranchDeleted(Answer):
    """A branch that was removed.

    Args:
        deleted: name of the branch, `PIPELINE@BRANCH`.
    """

    pipeline: str
    deleted: str

    says: ClassVar[str] = "branch {deleted} is deleted; {pipeline} is unchanged"


def branch_create(config: Config, pipeline: str, name: str, settings: Mapping[str, Length], of: str) -> Branch:
    tables, branch = _both(config, pipeline, name)
    changed = _millis(settings)
    # The values are checked before the folder is created.
    with_settings(load_pipeline(config, pipeline), changed)
    if read_note(branch.warehouse, branch.pipeline) is not None:
        raise UsageError(
            f"branch {branch.pipeline} exists: give another name, or first run `tidegate branch {pipeline} {name} "
            "--delete`"
        )
    find_snapshot(tables, of)
    failed: Exception | None = None
    with Lease(branch, "branch", system_clock) as lease:
        try:
            make_branch(tables, branch, of, changed, system_clock(), lease.check)
        except Exception as error:
            lease.check()
            remove_branch(branch, lease.check)
            failed = error
    if failed is not None:
        remove_folder(branch)
        raise failed
    return _described(branch)


def branch_list(config: Config, pipeline: str) -> Branches:
    tables = _tables(config, pipeline)
    names = sorted(branches_of(tables.warehouse, pipeline))
    complete = [name for name in names if read_note(tables.warehouse, name) is not None]
    branches = tuple(_described(PipelineTables(tables.warehouse, name)) for name in complete)
    return Branches(pipeline, branches, tuple(name for name in names if name not in complete))


def branch_delete(config: Config, pipeline: str, name: str) -> BranchDeleted:
    """Remove a branch permanently, or the remains of an interrupted call."""
    # `rename` names this command when tidegate.toml no longer has the old name of the pipeline.
    branch = PipelineTables(warehouse_of(config), f"{pipeline}@{name}")
    if branch.pipeline not in branches_of(branch.warehouse, pipeline):
        _both(config, pipeline, name)
        raise no_branch(branch.warehouse, branch.pipeline)
    with Lease(branch, "branch --delete", system_clock) as lease:
        remove_branch(branch, lease.check)
        FilesOfRuns(config, branch.pipeline, ()).remove()
    remove_folder(branch)
    return BranchDeleted(pipeline, branch.pipeline)


def found_branch(config: Config, pipeline: str, name: str) -> tuple[PipelineTables, PipelineTables, BranchNote]:
    """Return the tables of a pipeline and of a complete branch of it, and the note of the branch.

    Raises:
        UsageError: there is no such branch.
    """
    tables, branch = _both(config, pipeline, name)
    note = read_note(branch.warehouse, branch.pipeline)
    if note is None:
        raise no_branch(branch.warehouse, branch.pipeline)
    return tables, branch, note


def _tables(config: Config, pipeline: str) -> PipelineTables:
    if branch_of(pipeline) is not None:
        raise UsageError(
            f"{pipeline!r} is a branch: a branch can't have branches. Create another branch of its pipeline"
        )
    return PipelineTables.of(config, pipeline)


def _both(config: Config, pipeline: str, name: str) -> tuple[PipelineTables, PipelineTables]:
    """Return the tables of a pipeline and those of a branch of it."""
    tables = _tables(config, pipeline)
    try:
        check_name(name)
    except ValueError as error:
        raise UsageError(f"branch {error}") from error
    return tables, PipelineTables(tables.warehouse, f"{pipeline}@{name}")


def _millis(settings: Mapping[str, Length]) -> dict[str, Millis]:
    if not settings:
        raise UsageError("--set: give at least one setting, such as --set allowed_lateness=2h")
    changed = {}
    for name, value in settings.items():
        check_setting(name)
        (changed[name],) = lengths_of((value,), f"--set {name}", or_zero=True)
    return changed


def _described(branch: PipelineTables) -> Branch:
    note, head = read_note(branch.warehouse, branch.pipeline), require_snapshot(branch)
    assert note is not None, "the caller looked for it"
    snapshot = require_published(branch, head)
    return Branch(
        pipeline_of(branch.pipeline),
        branch.pipeline,
        note.settings,
        note.epoch,
        snapshot.manifest.epoch,
        settled_watermark(snapshot, head),
        note.created_at,
    )


def said(settings: Mapping[str, Millis]) -> str:
    """Return settings as human-readable text."""
    return ", ".join(f"{name}={show_duration(value)}" for name, value in settings.items())


@dataclass(frozen=True, slots=True)
class Promoted(Answer):
    """A branch whose results and state have become the pipeline's.

    Args:
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
            f"{self.branch} was promoted by epoch {self.epoch} of {self.pipeline}, on timeline {self.timeline}; "
            f"watermark {show_millis(self.watermark)}. Readers of changes get the differing windows as corrections"
        )
        yield f"the branch stays until `tidegate branch {self.pipeline} {branch_of(self.branch)} --delete`"


def promote(config: Config, pipeline: str, branch: str) -> Promoted:
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
