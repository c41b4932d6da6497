"""A task that watches a stream: it fails when the watermark lies too far behind the clock."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from tidegate.pipelines.inspect.status import read_status

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow.sdk import Context


class WatermarkWatch(BaseOperator):
    """Compares a pipeline's watermark with the clock; reads only the newest snapshot.

    Args:
        pipeline: its name in tidegate.toml.
        config: path of tidegate.toml.
        max_lag: the largest allowed lag of the watermark; the run's Param `max_lag_minutes` takes precedence.
        clock: returns the present time.
    """

    ui_color = "#f6e3c8"

    def __init__(
        self,
        *,
        pipeline: str,
        config: str,
        max_lag: timedelta,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.pipeline = pipeline
        self.config = config
        self.max_lag = max_lag
        self.clock = clock

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the status of the pipeline.

        Raises:
            AirflowFailException: the watermark lies too far behind; a retry would change nothing.
            AirflowSkipException: the pipeline has no watermark yet.
        """
        given = context["params"].get("max_lag_minutes")
        limit = self.max_lag if given is None else timedelta(minutes=float(given))
        status = read_status(self.config, self.pipeline)
        lag = status.lag(self.clock())
        if lag is None:
            raise AirflowSkipException(
                f"{self.pipeline} has no watermark yet (epoch {status.epoch}): nothing lies behind"
            )
        what, why = ("watermark", "the source silent, or the stream not running")
        if status.ends_by_clock:
            what, why = ("clock", "the stream not running")
        message = f"{self.pipeline}: {what} of epoch {status.epoch} lies {timedelta(seconds=round(lag))} behind"
        if lag > limit.total_seconds():
            raise AirflowFailException(f"{message}, more than {limit}. Is {why}?")
        self.log.info("%s, at most %s is allowed", message, limit)
        return asdict(status)
