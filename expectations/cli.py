"""`tidegate quality` checks the tables of a pipeline as of an epoch against its suites."""

from __future__ import annotations

import re
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from tidegate.extras import require
from tidegate.pipelines.cli.screen import Screen, table, with_screen
from tidegate.pipelines.errors import QualityFailed, UsageError

if TYPE_CHECKING:
    from tidegate.expectations.pinned import Pinned
    from tidegate.pipelines.config import PartitionUnit


_QUOTED = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"")
"""Texts and quoted names of SQL."""
_UNSTABLE = re.compile(
    r"\b(?:select\b|(?:now|random|uuid|today)\s*\(|current_(?:date|time|timestamp)\b|localtime(?:stamp)?\b)",
    re.IGNORECASE,
)
"""What depends on other windows or on the moment: a condition is evaluated again at each check."""


class _Quality(click.Command):
    """The check of a pipeline, or `quality acknowledge PIPELINE`."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        # A pipeline may have that name; a check of it has options at most.
        if args[:1] == ["acknowledge"] and len(args) > 1 and (args[1] == "--help" or not args[1].startswith("-")):
            return acknowledge.make_context(f"{info_name} acknowledge", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


@click.command(cls=_Quality)
@click.argument("pipeline")
@click.option("--epoch", type=int, help="The snapshot of this epoch; default: the newest.")
@click.option("--all", "everything", is_flag=True, help="Check every window that stands, and read every file.")
@click.option(
    "--partitions",
    "unit",
    type=click.Choice(["hour", "day", "month"]),
    help="Also return the keys of the partitions whose final windows changed, by the windows' start in UTC.",
)
@click.option("--since", help="JSON of `mark` in the result of an earlier check: only what changed since then.")
@click.option("--report", "with_report", is_flag=True, help="Write the run report as well, whatever the outcome.")
@with_screen
def quality(
    screen: Screen,
    pipeline: str,
    epoch: int | None,
    everything: bool,
    unit: PartitionUnit | None,
    since: str | None,
    with_report: bool,
) -> None:
    """Check the tables of PIPELINE as of an epoch.

    The rules for all windows of its kind are checked. The suite that tidegate.toml names is checked over the
    windows that became final since the newest check that passed, if there are any. If a critical expectation does not
    hold, the command ends with exit code 5; a warning only marks the run. An expectation that can't be evaluated is an
    error of the suite, and ends it with exit code 2.

    `tidegate quality acknowledge PIPELINE --where CONDITION --reason TEXT` lets windows pass that are known to be bad.
    """
    config = screen.config()
    path = config.entry(pipeline).suite
    require("a check", "great_expectations", "jinja2", "pandas", extra="quality")
    if with_report:
        require("the run report", "jinja2", "matplotlib")
    from tidegate.expectations.changed import Mark, changed_partitions
    from tidegate.expectations.pinned import pin
    from tidegate.expectations.run import run_suites
    from tidegate.expectations.suites import check_suite, suites
    from tidegate.pipelines.definition.load import load_pipeline
    from tidegate.pipelines.run.driver import system_clock
    from tidegate.pipelines.run.work_folder import DAY, clean
    from tidegate.pipelines.storage import warehouse_of
    from tidegate.pipelines.stores.artifacts import artifacts_of, docs_folder
    from tidegate.pipelines.tables import quality as outcomes
    from tidegate.pipelines.tables.pipeline_tables import PipelineTables

    suite = None if path is None else config.load(path, f"pipelines.{pipeline}.suite")
    tables = PipelineTables(warehouse_of(config), pipeline)
    artifacts = artifacts_of(config)
    folder = config.work_folder / docs_folder(pipeline)
    folder.mkdir(parents=True, exist_ok=True)
    pinned = pin(tables, load_pipeline(config, pipeline), epoch, folder, everything=everything)
    if suite is not None:
        check_suite(suite, f"pipelines.{pipeline}.suite = {path!r}", pinned.no_rows)
    run = run_suites(suites(pinned, suite), pinned, tables, artifacts)
    now = system_clock()
    outcomes.tidy(tables, now - config.entry(pipeline).retain_quality_days * DAY)
    clean(config, now)
    readers_know = None if since is None else Mark.parse(since)
    changed = None
    if unit is not None and (
        not run.is_critical or (config.entry(pipeline).hold == "partitions" and run.names_windows)
    ):
        changed = changed_partitions(pinned, unit, readers_know, run.failing)
        # Partitions that are too many to be named can't be held back one by one.
        changed = changed if changed.are_few or not run.is_critical else None
    report = None
    if with_report:
        from tidegate.pipelines.report.page import write_report

        report = write_report(config, pipeline, run.epoch)
    failed = [
        ("FAILS", check.severity, check.suite, f"{check.expectation}{check.subject}", check.observed)
        for check in run.failed
    ]
    holds = f"{len(run.checks) - len(failed)} of {len(run.checks)} expectations hold"
    screen.show(
        {
            **_of_snapshot(pinned),
            "windows": pinned.fresh_windows,
            "looked_from": None if pinned.scope.proof is None else pinned.scope.proof.epoch,
            "check_id": run.checks[0].check_id if run.checks else None,
            "quality": run.state,
            "expectations": {"checked": len(run.checks), "hold": len(run.checks) - len(failed)},
            "success": not run.is_critical,
            "checks": [{**asdict(check), "proof": check.proof is not None} for check in run.checks],
            "partitions": None if changed is None else changed.to_dict(),
            "acknowledged": [
                {"epoch": number, "where": where, "reason": reason} for number, where, reason in pinned.acknowledged
            ],
            "docs": run.docs,
            "report": report,
        },
        f"{pipeline}, epoch {run.epoch}: {_new_windows(pinned)}, {run.state}; {holds}",
        *((table("", ("", "severity", "rows", "expectation", "observed"), failed),) if failed else ()),
        *(() if changed is None else (f"changed partitions: {changed}",)),
        f"Data Docs: {run.docs}",
        *(() if report is None else (f"Run report: {report}",)),
    )
    if run.is_critical:
        held = "" if changed is None else f"; partitions that may be read: {changed}"
        raise QualityFailed(f"{pipeline}, epoch {run.epoch}: {run.failures}; see {run.docs}{held}")


@click.command()
@click.argument("pipeline")
@click.option("--where", required=True, help="SQL condition on columns of the final windows.")
@click.option("--reason", required=True, help="Why they may pass; it is kept and shown.")
@with_screen
def acknowledge(screen: Screen, pipeline: str, where: str, reason: str) -> None:
    """Let windows of PIPELINE pass its own suite from now on, although they are bad.

    The suite leaves out the windows that fulfil the condition, as they are now: a window that gets another result is
    checked again.
    """
    config = screen.config()
    config.entry(pipeline)
    require("an acknowledgement", "great_expectations", "pandas", extra="quality")
    from tidegate.expectations.pinned import pin
    from tidegate.expectations.unexpected_rows import matches
    from tidegate.pipelines.definition.load import load_pipeline
    from tidegate.pipelines.tables import quality as outcomes

    if not reason.strip():
        raise UsageError("--reason is empty: say why these windows may pass, for whoever reads it later")
    if found := _UNSTABLE.search(_QUOTED.sub("''", where)):
        raise UsageError(
            f"--where {where!r}: {found[0].strip('( ')!r} gives another answer at the next check, which would pass "
            "over windows that nobody has seen. Compare columns of a window with values"
        )
    tables = screen.tables(pipeline)
    # Most bad windows are new; others only `quality --all` looks at, and all windows are many.
    for everything in (False, True):
        pinned = pin(tables, load_pipeline(config, pipeline), everything=everything)
        windows = pinned.fresh
        if count := int(matches(where, windows).sum()) if len(windows) else 0:
            break
    else:
        raise UsageError(
            f"--where {where!r}: none of the {len(windows)} final windows of {pipeline} that are not acknowledged yet "
            f"fulfils it. `tidegate quality {pipeline} --all` names those that fail"
        )
    outcomes.acknowledge(tables, pinned.manifest, where, reason, count, datetime.now(UTC))
    screen.show(
        {"pipeline": pipeline, "epoch": pinned.manifest.epoch, "where": where, "reason": reason, "windows": count},
        f"{count} windows of {pipeline} are acknowledged as of epoch {pinned.manifest.epoch}: checks pass over them",
    )


def _new_windows(pinned: Pinned) -> str:
    since = "" if pinned.since is None else f" since epoch {pinned.since}"
    return f"{pinned.fresh_windows} windows became final{since}"


def _of_snapshot(pinned: Pinned) -> dict[str, Any]:
    """Return the fields of the checked snapshot."""
    manifest = pinned.manifest
    return {
        "pipeline": manifest.pipeline,
        "timeline": manifest.timeline,
        "epoch": manifest.epoch,
        "snapshot_version": pinned.versions["state"],
        "versions": dict(pinned.versions),
        "since": pinned.since,
        "interval": pinned.interval,
        "watermark": manifest.watermark,
        "counters": dict(manifest.counters),
    }
