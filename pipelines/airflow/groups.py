"""The DAG of a group of streams: one command runs all of them, and the following task reports which of them failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from tidegate.pipelines.airflow.alarms import Alarm, AlarmEnds
from tidegate.pipelines.airflow.assets import FAILED
from tidegate.pipelines.airflow.operator import CommandFailed
from tidegate.pipelines.errors import LEASE_HELD

if TYPE_CHECKING:
    from airflow.sdk import Context


class StreamsFailed(CommandFailed):
    """Streams of a group failed. The message has the error and the exit code of each pipeline."""

    def __init__(self, failed: Mapping[str, Mapping[str, Any]]) -> None:
        super().__init__("; ".join(f"{name}: {error['message']}" for name, error in failed.items()), None)
        self.failed = failed


class FailedStreams(BaseOperator):
    """Fails if streams of the group failed. The preceding task succeeds, so that the other streams' events are sent.

    Args:
        streams: id of the task that runs them.
        skip_if_held: a template; if it renders to `True`, a lease held by another driver is not a failure.
    """

    template_fields: Sequence[str] = ("skip_if_held",)

    def __init__(self, *, streams: str, skip_if_held: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.streams = streams
        self.skip_if_held = skip_if_held

    def execute(self, context: Context) -> None:
        """Check the result of the command.

        Raises:
            StreamsFailed: streams failed.
        """
        failed = context["ti"].xcom_pull(task_ids=self.streams)[FAILED]
        passed_over = LEASE_HELD if str(self.skip_if_held) == "True" else None
        if failed := {name: error for name, error in failed.items() if error["exit_code"] != passed_over}:
            raise StreamsFailed(failed)


@dataclass(frozen=True, slots=True)
class GroupAlarm:
    """Failure callback of a group's tasks: it raises an alarm for each failed pipeline, and ends the others' incidents.

    If the command failed as a whole, each pipeline has its own alarm, because owners and notifiers differ. `owners` has
    the owner of each pipeline.
    """

    config: str
    owners: Mapping[str, str]
    prefix: str = ""

    def __call__(self, context: Any) -> None:
        """Raise the alarms of a failed task."""
        # The context of a task whose worker died has no exception.
        error = context.get("exception")
        failed = error.failed if isinstance(error, StreamsFailed) else None
        for name, owner in self.owners.items():
            alarm = Alarm(self.config, name, self.prefix, owner)
            if failed is None:
                alarm(context)
            elif name not in failed:
                AlarmEnds(self.config, name, self.prefix, owner)(context)
            else:
                message = str(failed[name]["message"])
                of_one = CommandFailed(f"{name}: {message}", failed[name]["exit_code"], message)
                alarm({**context, "exception": of_one})
