"""A watch over a stream: fails when its watermark lies too far behind the clock."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from tidegate.pipelines.inspect.standing import read_standing

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow.sdk import Context


class WatermarkWatch(BaseOperator):
    """Compares a pipeline's watermark with the clock; reads only the newest snapshot.

    Args:
        pipeline: its name in tidegate.toml.
        config: path of tidegate.toml.
        max_lag: how far the watermark may lie behind; a Param of the run named `max_lag_minutes` comes first.
        clock: now.
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
        """How the pipeline stands.

        Raises:
            AirflowFailException: it has no watermark, or one too far behind; a retry would change nothing.
        """
        given = context["params"].get("max_lag_minutes")
        limit = self.max_lag if given is None else timedelta(minutes=float(given))
        standing = read_standing(self.config, self.pipeline)
        lag = standing.lag(self.clock())
        if lag is None:
            raise AirflowFailException(
                f"{self.pipeline} has no watermark yet (epoch {standing.epoch}): did it ever run?"
            )
        told = f"{self.pipeline}: watermark of epoch {standing.epoch} lies {timedelta(seconds=round(lag))} behind"
        if lag > limit.total_seconds():
            raise AirflowFailException(f"{told}, more than {limit}. Is the source silent, or the stream not running?")
        self.log.info("%s, at most %s is allowed", told, limit)
        return asdict(standing)
