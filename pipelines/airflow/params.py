"""The Params of the DAGs: typed, checked before a run is created, and explained in the trigger form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from airflow.sdk import Param
from airflow.sdk.exceptions import AirflowFailException

LATEST, FROM_SCRATCH = "latest", "none"
"""Values of `restore`: continue from the newest snapshot, or start from scratch."""
PATIENCE_SECONDS = 3600
"""Longest time for which a run waits for another run that ends on its own: a backfill, or a scheduled run of the
stream.
"""
AVAILABLE_NOW, CONTINUOUS = "available-now", "continuous"
BY_ITSELF = "dag_run.run_type in ('scheduled', 'asset_triggered')"
"""Template expression, true for runs that no person started: they may be skipped while another run is active."""

_A_MOMENT = (
    "A date-time; without a zone, it is in the pipeline's timezone. Give both start and end, or neither for the data "
    "interval of the run."
)


@dataclass(frozen=True, slots=True)
class KnownParams:
    """Checks the keys in a run's conf before any of its tasks starts work.

    Airflow accepts any key, so a Param whose name is misspelled would silently keep its default.

    Args:
        names: names of the DAG's Params.
        in_other_dags: Params of the pipeline's other DAGs that users may look for here, each with the id of its DAG.
    """

    names: tuple[str, ...]
    in_other_dags: tuple[tuple[str, str], ...] = ()

    def __call__(self, context: Any) -> None:
        """Let a run pass if all its keys are Params of the DAG.

        Raises:
            AirflowFailException: a key is not a Param; the message lists the DAG's Params.
        """
        given = context["dag_run"].conf or {}
        if unknown := sorted(set(given) - set(self.names)):
            names = f"The DAG has {', '.join(self.names)}" if self.names else "The DAG has none"
            raise AirflowFailException(f"{' '.join(map(self._describe, unknown))} {names}. Nothing was done")

    def _describe(self, name: str) -> str:
        if (other := dict(self.in_other_dags).get(name)) is not None:
            return f"{name!r} is not a Param of this DAG, but of {other}: trigger that one."
        close = get_close_matches(name, self.names, 1)
        return f"{name!r} is not a Param of this DAG{f': did you mean {close[0]}?' if close else '.'}"


def _moment_param(title: str, description: str) -> Param:
    return Param(None, type=["null", "string"], format="date-time", title=title, description=description)


def backfill() -> dict[str, Param]:
    """Return the Params of `<pipeline>__backfill`."""
    return {
        "interval_start": _moment_param("Run another interval: start", _A_MOMENT),
        "interval_end": _moment_param("Run another interval: end (exclusive)", _A_MOMENT),
        "and_following": Param(
            False,
            type="boolean",
            title="Also rerun the later intervals",
            description="After a correction of the source, later intervals are still based on the old windows of "
            "this one. Off: their results stay readable, marked stale, until they are rerun. On: this run also "
            "replaces them.",
        ),
        "fill_gaps": Param(
            False,
            type="boolean",
            title="Also run missing earlier intervals",
            description="On: if earlier intervals have not run yet, this run first runs them, in intervals of the same "
            "length. Off: the run is refused, because the rows in between would be lost.",
        ),
        "again": Param(
            False,
            type="boolean",
            title="Rerun even if nothing changed",
            description="On: run the interval again even if its rows and the code seem unchanged.",
        ),
        "events": Param(
            True,
            type="boolean",
            title="Announce final windows",
            description="Off: this run creates no asset events. The next check that may, such as a run of the quality "
            "DAG, announces everything that changed since the last event.",
        ),
    }


def stream(mode: str) -> dict[str, Param]:
    """Return the Params of `<pipeline>__stream`."""
    return {
        "mode": Param(
            mode,
            type="string",
            enum=[AVAILABLE_NOW, CONTINUOUS],
            title="Mode",
            description="available-now reads what is available and ends; continuous runs until it is stopped.",
        ),
        "interval": Param(
            "10s",
            type="string",
            pattern=r"^[1-9][0-9]{0,5}(s|min|h)$",
            title="Time between two epochs",
            description="For a continuous stream, such as 10s or 1min.",
        ),
        "parallelism": Param(
            None,
            type=["null", "integer"],
            minimum=1,
            maximum=32768,
            title="Parallelism",
            description="Number of shards, at most max_parallelism. Default: that of the pipeline.",
        ),
    }


def restart(mode: str) -> dict[str, Param]:
    """Return the Params of `<pipeline>__restart`."""
    return {
        "restore": Param(
            LATEST,
            type="string",
            pattern=rf"^({LATEST}|{FROM_SCRATCH}|[0-9]{{1,18}}|savepoint:[A-Za-z][A-Za-z0-9_-]{{0,99}})$",
            title="Start from",
            description=f"`{LATEST}` continues from the newest snapshot. The number of an epoch, or `savepoint:NAME`, "
            "starts a new timeline from that snapshot. The new timeline begins with its first commit, which removes "
            "the results that the old timeline published after the snapshot. "
            f"`{FROM_SCRATCH}` starts from scratch at the source's beginning.",
        ),
        "savepoint": Param(
            None,
            type=["null", "string"],
            pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,99}$",
            title="Create a savepoint first",
            description="Name for a copy of the newest snapshot, created before anything is stopped.",
        ),
        "take_over": Param(
            False,
            type="boolean",
            title="Stop the running stream",
            description="On: the running stream stops after its current epoch. Off: this run waits for a scheduled run "
            "to end; if a continuous stream is running, this run ends with exit code 4.",
        ),
        **stream(mode),
    }


def late() -> dict[str, Param]:
    """Return the Params of `<pipeline>__late`."""
    description = "A date-time; without a zone, it is in the pipeline's timezone. Default: all late rows."
    return {
        "start": _moment_param("Only windows that begin at this time or later", description),
        "end": _moment_param("Only windows that begin before this time", description),
    }


def quality() -> dict[str, Param]:
    """Return the Params of `<pipeline>__quality`."""
    return {
        "epoch": Param(
            None,
            type=["null", "integer"],
            minimum=1,
            title="Epoch",
            description="Check the snapshot of this epoch, with all rows up to it. Default: the newest.",
        )
    }


def watch(max_lag_minutes: float) -> dict[str, Param]:
    """Return the Params of `<pipeline>__watch`."""
    return {
        "max_lag_minutes": Param(
            max_lag_minutes,
            type="number",
            exclusiveMinimum=0,
            title="Limit in minutes",
            description="How far the watermark may be behind the clock.",
        )
    }


def backfill_arguments(pipeline: str) -> list[str]:
    """Return `tidegate backfill` over the interval in the run's Params, or over its data interval by default.

    Start and end always come from the same one of the two. If either is missing, it is left out, and the command
    reports that.
    """
    return [
        "backfill",
        pipeline,
        _moment("start"),
        _moment("end"),
        "{{ '--and-following' if params.and_following else '' }}",
        "{{ '--fill-gaps' if params.fill_gaps else '' }}",
        "{{ '--again' if params.again else '' }}",
        # Two runs that are triggered at the same time run one after the other.
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


def stream_arguments(pipeline: str) -> list[str]:
    """Return `tidegate stream` with the Params mode, interval and parallelism."""
    return [
        "stream",
        pipeline,
        f"{{{{ '--available-now' if params.mode == '{AVAILABLE_NOW}' else '--interval=' ~ params.interval }}}}",
        "{{ '--parallelism=' ~ params.parallelism if params.parallelism else '' }}",
        # Unpausing the DAG also starts a scheduled run, and a manually triggered run must not lose to it.
        f"{{{{ '' if {BY_ITSELF} else '--patience={PATIENCE_SECONDS}' }}}}",
    ]


def streams_arguments(pipelines: Sequence[str]) -> list[str]:
    """Return `tidegate stream` of several pipelines with the Params mode and interval."""
    command, name, mode, _, patience = stream_arguments(pipelines[0])
    return [command, name, *pipelines[1:], mode, patience]


def restart_arguments(pipeline: str, before: str) -> list[str]:
    """Return `tidegate stream` with the Params of a stream, and from the snapshot that `restore` names.

    Task `before` recorded the pipeline's status: a retry continues what the first attempt restored and began.
    """
    timeline = f"ti.xcom_pull(task_ids='{before}')['timeline']"
    command, name, mode, *others = stream_arguments(pipeline)
    return [
        command,
        name,
        mode,
        f"{{{{ '' if params.restore == '{LATEST}' else '--restore=' ~ params.restore }}}}",
        f"{{{{ '' if params.restore == '{LATEST}' else '--restore-from-timeline=' ~ {timeline} }}}}",
        *others,
    ]


def maintenance_savepoint_arguments(pipeline: str, keep: int) -> list[str]:
    """Return `tidegate savepoints create`, named by the run's time. It then deletes older maintenance savepoints."""
    name = "{{ 'maintenance-' ~ dag_run.run_after.strftime('%Y%m%dT%H%M%S') }}"
    return ["savepoints", "create", pipeline, name, "--if-missing", f"--keep={keep}"]


def reopen_arguments(pipeline: str) -> list[str]:
    """Return `tidegate late reopen` of the rows whose windows begin between the Params `start` and `end`, or of all.

    A continuous stream holds the lease, and does this itself.
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
    """Return `tidegate snapshots check`, which fails if the code can't continue from the stream's start snapshot."""
    return ["snapshots", "check", pipeline, "{{ params.restore }}"]


def savepoint_arguments(pipeline: str) -> list[str]:
    """Return `tidegate savepoints create` for the newest snapshot. A savepoint that an earlier run created suffices."""
    return ["savepoints", "create", pipeline, "{{ params.savepoint or '' }}", "--if-missing"]


def quality_arguments(pipeline: str, epoch: str) -> list[str]:
    """Return `tidegate quality check` with its report, for the epoch of a template expression, or for the newest."""
    return [
        *("quality", "check"),
        pipeline,
        f"{{% set epoch = {epoch} %}}{{{{ '--epoch=' ~ epoch if epoch else '' }}}}",
        "--report",
    ]
