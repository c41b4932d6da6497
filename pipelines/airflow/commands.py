"""The command lines of the DAGs' tasks, made of their Params in one place.

Each is a list of templates, one for each argument; an argument that renders to nothing is left out.
No shell reads them, and a value is always part of its option, so that it can't become another one.
"""

from __future__ import annotations

LATEST, ANEW = "latest", "none"
"""`restore` of a stream that goes on from its newest snapshot, and of one that starts anew."""
AVAILABLE_NOW, CONTINUOUS = "available-now", "continuous"


def backfill_arguments(pipeline: str) -> list[str]:
    """`tidegate backfill` over the run's data interval, or the one in its Params."""
    return [
        "backfill",
        pipeline,
        "--start={{ params.interval_start or data_interval_start.isoformat() }}",
        "--end={{ params.interval_end or data_interval_end.isoformat() }}",
        "{{ '--and-following' if params.and_following else '--no-and-following' }}",
    ]


def stream_arguments(pipeline: str, before: str) -> list[str]:
    """`tidegate stream` as the Params mode, interval, restore and parallelism say.

    Args:
        pipeline: its name.
        before: the task that noted how it stood: a retry goes on from what the first try restored and began.
    """
    timeline = f"ti.xcom_pull(task_ids='{before}')['timeline']"
    return [
        "stream",
        pipeline,
        f"{{{{ '--available-now' if params.mode == '{AVAILABLE_NOW}' else '--interval=' ~ params.interval }}}}",
        f"{{{{ '' if params.restore == '{LATEST}' else '--restore=' ~ params.restore }}}}",
        f"{{{{ '' if params.restore == '{LATEST}' else '--restore-from-timeline=' ~ {timeline} }}}}",
        "{{ '--parallelism=' ~ params.parallelism if params.parallelism else '' }}",
    ]


def check_arguments(pipeline: str) -> list[str]:
    """`tidegate snapshot check`: whether the code can go on from the snapshot that the stream would start from."""
    return ["snapshot", "check", pipeline, "{{ params.restore }}"]


def savepoint_arguments(pipeline: str) -> list[str]:
    """`tidegate savepoint create` of the newest snapshot."""
    return ["savepoint", "create", pipeline, "{{ params.savepoint or '' }}"]


def quality_arguments(pipeline: str, epoch: str) -> list[str]:
    """`tidegate quality` with its report, of the epoch that a template expression gives; of the newest if none."""
    return [
        "quality",
        pipeline,
        f"{{% set epoch = {epoch} %}}{{{{ '--epoch=' ~ epoch if epoch else '' }}}}",
        "--report",
    ]
