"""Small tasks of the DAGs that need no command: they read a status or a result, stop a driver, or watch a watermark."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from tidegate.pipelines.airflow.assets import FAILED
from tidegate.pipelines.airflow.operator import CommandFailed, CommandRefused
from tidegate.pipelines.errors import LEASE_HELD, QUALITY
from tidegate.pipelines.observe.inspect.overview import failed_expectations
from tidegate.pipelines.observe.inspect.status import read_status
from tidegate.pipelines.run.stopping import stop_driver

if TYPE_CHECKING:
    from airflow.sdk import Context

_log = logging.getLogger(__name__)


class _PipelineTask(BaseOperator):
    """A task about one pipeline: its name in tidegate.toml, and the path of that file."""

    def __init__(self, *, pipeline: str, config: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pipeline = pipeline
        self.config = config


class ReadStatus(_PipelineTask):
    """Returns the newest epoch, snapshot version and watermark of a pipeline. The epoch is 0 before the first one."""

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the status of the pipeline."""
        return asdict(read_status(self.config, self.pipeline))


class StopStream(_PipelineTask):
    """Asks the driver that holds the lease to stop, and waits for its end. The driver may run on another host.

    Args:
        take_over: a template; if it renders to anything but `True`, no driver is stopped.
        patience: seconds to wait for the current epoch to end.
    """

    template_fields: Sequence[str] = ("take_over",)

    def __init__(self, *, take_over: str = "True", patience: float = 1800, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.take_over = take_over
        self.patience = patience

    def execute(self, context: Context) -> dict[str, Any]:
        """Stop the driver, and then return the status of the pipeline.

        The old stream may have published epochs until then. These don't count as the new stream's first epoch.

        Raises:
            LeaseHeld: the driver did not end in time.
        """
        if str(self.take_over) == "True":
            stopped = stop_driver(self.config, self.pipeline, self.patience, self.log.info)
            self.log.info("stopped %s", stopped or "nobody: no driver was running")
        return asdict(read_status(self.config, self.pipeline))


class WatermarkWatch(_PipelineTask):
    """Compares a pipeline's watermark with the clock, reading only the newest snapshot.

    Args:
        max_lag: the largest allowed lag of the watermark; the run's Param `max_lag_minutes` takes precedence.
        clock: returns the current time.
    """

    ui_color = "#f6e3c8"

    def __init__(
        self,
        *,
        max_lag: timedelta,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.max_lag = max_lag
        self.clock = clock

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the status of the pipeline.

        Raises:
            AirflowFailException: the watermark is too far behind; a retry would not help.
            AirflowSkipException: the pipeline has no watermark yet.
        """
        given = context["params"].get("max_lag_minutes")
        limit = self.max_lag if given is None else timedelta(minutes=float(given))
        status = read_status(self.config, self.pipeline)
        lag = status.lag(self.clock())
        if lag is None:
            raise AirflowSkipException(
                f"{self.pipeline} has no watermark yet (epoch {status.epoch}): nothing to compare"
            )
        what, why = ("watermark", "the source idle, or the stream not running")
        if status.ends_by_clock:
            what, why = ("clock", "the stream not running")
        message = f"{self.pipeline}: {what} of epoch {status.epoch} is {timedelta(seconds=round(lag))} behind"
        if lag > limit.total_seconds():
            raise AirflowFailException(f"{message}, more than {limit}. Is {why}?")
        self.log.info("%s, at most %s is allowed", message, limit)
        return asdict(status)


HELD: Final = "held"
"""Id of the task."""


class HeldPartitions(_PipelineTask):
    """Fails with exit code 5 if critical expectations of the preceding check, task `check`, failed."""

    def __init__(self, *, check: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.check = check
        self.result: dict[str, Any] | None = None
        """The parts of the check's JSON that alarms show."""

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the partitions that may be read.

        Raises:
            CommandRefused: critical expectations failed.
        """
        result = context["ti"].xcom_pull(task_ids=self.check)
        failed = [] if result["success"] else failed_expectations(self.config, self.pipeline, result["check_id"])
        self.result = {**result, "checks": failed}
        if not result["success"]:
            reasons = [check["message"] for check in failed if check["severity"] == "critical"]
            held = f"{result['partitions']['held']} partitions of {self.pipeline} are held back"
            message = f"epoch {result['epoch']}: {held}: {'; '.join(reasons)}; see {result['docs']}"
            raise CommandRefused(message, QUALITY, message)
        return dict(result["partitions"])


@dataclass(frozen=True, slots=True)
class StaleNote:
    """Names the intervals whose results are now stale, and the command that reruns them."""

    config: str
    pipeline: str
    prefix: str = ""

    def __call__(self, context: Context, result: Any) -> None:
        """Log the note after a run, if anything is stale."""
        if (text := self.text()) is not None:
            _log.warning(text)

    def text(self) -> str | None:
        """Return the note, or None if nothing is stale."""
        stale = read_status(self.config, self.pipeline).stale
        if not stale:
            return None
        starts = [start for start, _ in stale]
        moments = (min(starts), max(starts), max(end for _, end in stale))
        # Runs are dated by the starts of their intervals, and Airflow treats both dates as inclusive.
        first, last, end = (datetime.fromtimestamp(millis / 1000, UTC).isoformat() for millis in moments)
        return (
            f"the results of {len(stale)} of the later intervals, from {first} to {end}, are stale: they are based on "
            "windows that this run replaced. Rerun them with: "
            f"airflow tasks clear {self.prefix}{self.pipeline}__backfill "
            f"--task-regex windows --downstream --start-date {first} --end-date {last} --yes"
        )


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
