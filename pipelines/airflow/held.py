"""A task that fails after a check that held back only the partitions of failing windows.

Airflow takes the events of a task only if it succeeds, so the check itself ends well and this task fails in its place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow.sdk import BaseOperator

from tidegate.pipelines.airflow.operator import CommandRefused
from tidegate.pipelines.errors import QUALITY
from tidegate.pipelines.inspect.overview import failed_expectations

if TYPE_CHECKING:
    from airflow.sdk import Context

HELD: Final = "held"
"""Id of the task."""


class HeldPartitions(BaseOperator):
    """Fails with exit code 5 if critical expectations of the check before it do not hold.

    Args:
        pipeline: its name in tidegate.toml.
        config: path of tidegate.toml.
        check: id of the task that checks.
    """

    def __init__(self, *, pipeline: str, config: str, check: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pipeline = pipeline
        self.config = config
        self.check = check
        self.result: dict[str, Any] | None = None
        """The JSON of the check, as far as alarms show it."""

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the partitions that may be read.

        Raises:
            CommandRefused: critical expectations do not hold.
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
