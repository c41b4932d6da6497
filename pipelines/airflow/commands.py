"""The command lines of the DAGs' tasks, made of their Params in one place.

Each is a list of templates, one for each argument; an argument that renders to nothing is left out.
No shell reads them, and a value is always part of its option, so that it can't become another one.
"""

from __future__ import annotations

LATEST, ANEW = "latest", "none"
"""`restore` of a stream that goes on from its newest snapshot, and of one that starts anew."""
PATIENCE_SECONDS = 3600
"""How long a stream that somebody started waits for a run of the schedule, which ends by itself."""
AVAILABLE_NOW, CONTINUOUS = "available-now", "continuous"


def backfill_arguments(pipeline: str) -> list[str]:
    """`tidegate backfill` over the data interval of the run, or the one in its Params: never one moment of each.

    A moment that is missing is left out, and the command says which to give.
    """
    return [
        "backfill",
        pipeline,
        _moment("start"),
        _moment("end"),
        "{{ '--and-following' if params.and_following else '--no-and-following' }}",
        "{{ '--again' if params.again else '' }}",
    ]


def _moment(name: str) -> str:
    own = f"(data_interval_{name} | default(none))"
    return (
        "{% set is_given = params.interval_start or params.interval_end %}"
        f"{{% set moment = params.interval_{name} if is_given else {own}.isoformat() if {own} else none %}}"
        f"{{{{ '--{name}=' ~ moment if moment else '' }}}}"
    )


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
        # Unpausing the DAG starts a run of the schedule too, and the one that somebody asked for must not lose to it.
        f"{{{{ '' if dag_run.run_type == 'scheduled' else '--patience={PATIENCE_SECONDS}' }}}}",
    ]


def check_arguments(pipeline: str) -> list[str]:
    """`tidegate snapshot check`: whether the code can go on from the snapshot that the stream would start from."""
    return ["snapshot", "check", pipeline, "{{ params.restore }}"]


def savepoint_arguments(pipeline: str) -> list[str]:
    """`tidegate savepoint create` of the newest snapshot; what an earlier run made of it counts."""
    return ["savepoint", "create", pipeline, "{{ params.savepoint or '' }}", "--if-missing"]


def quality_arguments(pipeline: str, epoch: str) -> list[str]:
    """`tidegate quality` with its report, of the epoch that a template expression gives; of the newest if none."""
    return [
        "quality",
        pipeline,
        f"{{% set epoch = {epoch} %}}{{{{ '--epoch=' ~ epoch if epoch else '' }}}}",
        "--report",
    ]
