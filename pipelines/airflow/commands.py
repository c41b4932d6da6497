"""The command lines of the DAGs' tasks, built from their Params.

Each command line is a list of templates, one for each argument; an argument that renders to nothing is left out.
No shell reads them, and a value is always part of its option (`--end=...`), so a value can't become an option.
"""

from __future__ import annotations

LATEST, FROM_SCRATCH = "latest", "none"
"""Values of `restore`: continue from the newest snapshot, or start from scratch."""
PATIENCE_SECONDS = 3600
"""A run waits this long for another one that ends by itself: a backfill, or a scheduled run of the stream."""
AVAILABLE_NOW, CONTINUOUS = "available-now", "continuous"
BY_ITSELF = "dag_run.run_type in ('scheduled', 'asset_triggered')"
"""Expression of a template: nobody triggered the run, so another run that is at work may do its work."""


def backfill_arguments(pipeline: str) -> list[str]:
    """Return `tidegate backfill` over the interval in the run's Params, or else over its data interval.

    Start and end never come from different places. A missing one is left out, and the command asks for it.
    """
    return [
        "backfill",
        pipeline,
        _moment("start"),
        _moment("end"),
        "{{ '--and-following' if params.and_following else '--no-and-following' }}",
        "{{ '--fill-gaps' if params.fill_gaps else '' }}",
        "{{ '--again' if params.again else '' }}",
        # Two runs that somebody triggered at once run one after the other.
        f"--patience={PATIENCE_SECONDS}",
    ]


def _moment(name: str) -> str:
    scheduled = f"(data_interval_{name} | default(none))"
    return (
        "{% set is_given = params.interval_start or params.interval_end %}"
        f"{{% set moment = params.interval_{name} if is_given else "
        f"{scheduled}.isoformat() if {scheduled} else none %}}"
        f"{{{{ '--{name}=' ~ moment if moment else '' }}}}"
    )


def stream_arguments(pipeline: str, before: str) -> list[str]:
    """Return `tidegate stream` with the Params mode, interval, restore and parallelism.

    Args:
        pipeline: its name.
        before: the task that noted the pipeline's status: a retry continues what the first try restored and began.
    """
    timeline = f"ti.xcom_pull(task_ids='{before}')['timeline']"
    return [
        "stream",
        pipeline,
        f"{{{{ '--available-now' if params.mode == '{AVAILABLE_NOW}' else '--interval=' ~ params.interval }}}}",
        f"{{{{ '' if params.restore == '{LATEST}' else '--restore=' ~ params.restore }}}}",
        f"{{{{ '' if params.restore == '{LATEST}' else '--restore-from-timeline=' ~ {timeline} }}}}",
        "{{ '--parallelism=' ~ params.parallelism if params.parallelism else '' }}",
        # Unpausing the DAG starts a scheduled run too, and the run that somebody triggered must not lose to it.
        f"{{{{ '' if {BY_ITSELF} else '--patience={PATIENCE_SECONDS}' }}}}",
    ]


def reopen_arguments(pipeline: str) -> list[str]:
    """Return `tidegate late reopen` of the rows whose windows begin between the Params `start` and `end`, or of all.

    A continuous stream holds the lease, and does it by itself.
    """
    return [
        "late",
        "reopen",
        pipeline,
        "{{ '--start=' ~ params.start if params.start else '' }}",
        "{{ '--end=' ~ params.end if params.end else '' }}",
        f"--patience={PATIENCE_SECONDS}",
    ]


def check_arguments(pipeline: str) -> list[str]:
    """Return `tidegate snapshot check`, which fails if the code can't continue from the stream's start snapshot."""
    return ["snapshot", "check", pipeline, "{{ params.restore }}"]


def savepoint_arguments(pipeline: str) -> list[str]:
    """Return `tidegate savepoint create` of the newest snapshot; a savepoint that an earlier run made of it counts."""
    return ["savepoint", "create", pipeline, "{{ params.savepoint or '' }}", "--if-missing"]


def quality_arguments(pipeline: str, epoch: str) -> list[str]:
    """Return `tidegate quality` with its report, for the epoch of a template expression, by default the newest."""
    return [
        "quality",
        pipeline,
        f"{{% set epoch = {epoch} %}}{{{{ '--epoch=' ~ epoch if epoch else '' }}}}",
        "--report",
    ]
