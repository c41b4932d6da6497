"""Epochs that correct windows, because late rows are reopened or rows of the source changed: compute and commit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias, TypeVar

from tidegate.pipelines.definition.binding import BoundPipeline
from tidegate.pipelines.definition.window_shape import kept_shape
from tidegate.pipelines.epoch.closed import closed_through_of
from tidegate.pipelines.epoch.shard import ShardOutcome
from tidegate.pipelines.errors import TidegateError
from tidegate.pipelines.manifest import DataFile, Departed, Manifest, NextPane, Publish, Shard, line_after
from tidegate.pipelines.reopen.panes import UNTIL
from tidegate.pipelines.reopen.plan import ReadRows, ReopenPlan, plan_reopen
from tidegate.pipelines.reopen.selection import Selection
from tidegate.pipelines.reopen.task import BEYOND
from tidegate.pipelines.snapshots.commit import check_files, commit_snapshot, remaining
from tidegate.pipelines.snapshots.head import Snapshot
from tidegate.pipelines.snapshots.quiet import quiet_manifest
from tidegate.pipelines.storage import arrow_schema
from tidegate.pipelines.tables import late, rejects, results, state
from tidegate.pipelines.tables.counters import REOPENED, RETRACTED, ROWS_OUT
from tidegate.pipelines.tables.key_groups import key_hashes
from tidegate.pipelines.tables.keys import digests
from tidegate.pipelines.tables.pipeline_tables import PUBLISHED, PipelineTables
from tidegate.windowing.time import Millis

Tell: TypeAlias = Callable[[str], None]

_COUNTED = ("fired_late", RETRACTED)
_MARGINS = 8


def corrected(
    tables: PipelineTables,
    bound: BoundPipeline,
    head: Snapshot,
    selection: Selection,
    rows: ReadRows,
    now: Millis,
    tell: Tell = lambda step: None,
) -> tuple[ReopenPlan, list[ShardOutcome]]:
    """Plan to reopen late rows, and compute their windows; return the plan and the outcome of each shard.

    If the gap of sessions has grown, two former sessions may be one today. This shows when a computed session reaches
    beyond its stretch. Then the margin grows to that reach, and stretches within the margin are computed together.

    Raises:
        Refused: late rows of this pipeline can't be reopened.
        TidegateError: sessions reach beyond their stretches with every margin that was tried.
    """
    return computed(
        bound.pipeline.name,
        lambda margin: plan_reopen(tables, bound, head, selection, rows, now, margin),
        lambda plan: plan,
        rows,
        tell,
    )


Plan = TypeVar("Plan")


def computed(
    pipeline: str, planned: Callable[[Millis], Plan], windows: Callable[[Plan], ReopenPlan], rows: ReadRows, tell: Tell
) -> tuple[Plan, list[ShardOutcome]]:
    """Plan with a growing margin until no session reaches beyond its stretch; return plan and outcomes.

    Args:
        pipeline: name of the pipeline.
        planned: makes the plan with a margin, milliseconds.
        windows: returns the windows that a plan computes again.
        rows: the source rows.
        tell: called with the name of each step that is done.

    Raises:
        TidegateError: sessions reach beyond their stretches with every margin that was tried.
    """
    margin: Millis = 0
    for _ in range(_MARGINS):
        plan = planned(margin)
        again = windows(plan)
        tell("planned")
        outcomes = rows.correct(again) if len(again.wanted) else []
        beyond = max((outcome.counters.get(BEYOND, 0) for outcome in outcomes), default=0)
        if not beyond:
            tell("operated")
            return plan, outcomes
        margin = max(2 * margin, beyond, again.windows.assigner.gap_of_every_element or 0)
    raise TidegateError(
        f"windows of pipeline {pipeline!r}: a session ends {beyond} ms after the last known window and late row, even "
        f"if those up to {margin} ms apart count as one session. Nothing was committed"
    )


def commit_reopened(
    plan: ReopenPlan, outcomes: Sequence[ShardOutcome], seconds: float = 0.0, engine: str = "spark"
) -> Manifest:
    """Commit the corrections and the selection of reopened late rows; return the manifest.

    Raises:
        Refused: another driver committed since the plan was made, or a written file is missing.
    """
    return commit_corrections(plan, outcomes, {}, {}, {}, seconds=seconds, engine=engine)


def commit_corrections(
    plan: ReopenPlan,
    outcomes: Sequence[ShardOutcome],
    by_shard: Mapping[str, Sequence[int]],
    totals: Mapping[str, int],
    moved: Mapping[str, object],
    rejected: Sequence[DataFile] = (),
    departed: Mapping[str, Departed] = MappingProxyType({}),
    seconds: float = 0.0,
    engine: str = "spark",
) -> Manifest:
    """Commit the corrections of an epoch; return the manifest.

    Args:
        plan: the plan.
        outcomes: the outcomes of the shards with stretches.
        by_shard: further counters, for each shard.
        totals: further counters of the driver.
        moved: fields of the manifest that change, such as the positions.
        rejected: files for table rejects.
        departed: rows that leave a table, by table.
        seconds: duration of the job.
        engine: name of the engine that ran the tasks, for the manifest.

    Raises:
        Refused: another driver committed since the plan was made, or a written file is missing.
    """
    epoch = plan.epoch
    head = epoch.head
    assert head is not None
    done = {outcome.shard: outcome for outcome in outcomes}
    shards = tuple(_shard(shard, done.get(number)) for number, shard in enumerate(head.manifest.shards))
    files = tuple(outcome.files[results.NAME] for outcome in outcomes if results.NAME in outcome.files)
    work = {table: Publish() for table in PUBLISHED}
    work[results.NAME] = Publish(files=files)
    is_reopening = epoch.kind == "reopen" or any(plan.late_rows)
    leave = {table: (departed[table],) if table in departed else () for table in PUBLISHED}
    work[rejects.NAME] = Publish(files=tuple(rejected), departed=leave[rejects.NAME])
    work[late.NAME] = Publish(reopened=(plan.reopening,) if is_reopening else (), departed=leave[late.NAME])
    line = line_after(head.manifest, epoch.epoch)
    manifest = quiet_manifest(
        head.manifest, epoch.kind, epoch.epoch, epoch.timeline, line, work, epoch.started_at, shards
    )
    counted = {name: sum(outcome.counters[name] for outcome in outcomes) for name in _COUNTED}
    numbers = {REOPENED: plan.late_rows, **by_shard}
    counted |= {name: sum(rows) for name, rows in numbers.items()}
    counted[ROWS_OUT] = sum(file.rows for file in work[results.NAME].files)
    manifest = manifest.model_copy(
        update={
            "counters": {**manifest.counters, **counted, **totals},
            "shards": tuple(
                _counted(shard, done.get(number), {name: rows[number] for name, rows in numbers.items()})
                for number, shard in enumerate(manifest.shards)
            ),
            "phases": {"job": seconds},
            "closed_through": closed_through_of(
                epoch.bound, head, epoch.closed_through, head.manifest.watermark, passed=False
            ),
            "next_panes": _next_panes(plan, outcomes),
            "shape": kept_shape(epoch.bound.pipeline, head.manifest.stagger_offset),
            "run_id": epoch.run_id,
            "engine": None if engine == "spark" else engine,
            **moved,
        }
    )
    check_files(epoch.tables, manifest)
    changed = [head.manifest.shards[outcome.shard] for outcome in outcomes if outcome.changed]
    prefix = f"{state.NAME}-{manifest.epoch:06d}-{epoch.kind}"
    added, whole = remaining(epoch.tables, head, prefix, changed)
    added += [outcome.files[state.NAME] for outcome in outcomes if state.NAME in outcome.files]
    kept = {file["path"] for file in whole}
    commit_snapshot(epoch.tables, head.handle, manifest, arrow_schema(head.handle), added, kept)
    return manifest


def _next_panes(plan: ReopenPlan, outcomes: Sequence[ShardOutcome]) -> tuple[NextPane, ...]:
    """Return the pane numbers of sessions that may come again after the epoch."""
    assert plan.epoch.head is not None
    before, windows = plan.epoch.head.manifest.next_panes, plan.may_come_again
    if windows is None or not len(windows):
        return before
    columns = (digests(windows, plan.key), windows["window_id"], key_hashes(windows, plan.key), windows[UNTIL])
    looked_at = {
        (digest, identity): (hash_, until)
        for digest, identity, hash_, until in zip(*(column.to_pylist() for column in columns), strict=True)
    }
    # Only an older tidegate named keys by their hashes.
    by_hash = {(hash_, identity) for (_, identity), (hash_, _) in looked_at.items()}
    again = [item for outcome in outcomes for item in outcome.next_panes]
    return (
        *(
            item
            for item in before
            if (item.digest, item.window_id) not in looked_at
            and (item.digest is not None or (item.key, item.window_id) not in by_hash)
        ),
        *(
            NextPane(window_id=identity, key=hash_, pane=pane, until=until, digest=digest)
            for digest, identity, pane in again
            for hash_, until in (looked_at[digest, identity],)
        ),
    )


def _shard(before: Shard, outcome: ShardOutcome | None) -> Shard:
    """Return a shard with its rows, open windows and next timer after the epoch."""
    if outcome is None or not outcome.changed:
        return before
    counters = {**before.counters, "open_windows": outcome.counters["open_windows"]}
    return before.model_copy(
        update={
            "rows": outcome.rows,
            "counters": counters,
            "next_event_time_timer": outcome.next_event_time_timer,
        }
    )


def _counted(shard: Shard, outcome: ShardOutcome | None, numbers: Mapping[str, int]) -> Shard:
    """Return a shard with the counts of panes that the epoch emitted in it, and with further counts."""
    counted = {} if outcome is None else {name: outcome.counters[name] for name in _COUNTED}
    return shard.model_copy(update={"counters": {**shard.counters, **counted, **numbers}})
