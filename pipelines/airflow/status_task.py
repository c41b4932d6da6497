"""A task that reads the status of a pipeline for the tasks after it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from tidegate.pipelines.inspect.status import read_status

if TYPE_CHECKING:
    from airflow.sdk import Context


class ReadStatus(BaseOperator):
    """Returns the newest epoch, snapshot version and watermark of a pipeline; epoch 0 before the first.

    Args:
        pipeline: its name in tidegate.toml.
        config: path of tidegate.toml.
    """

    def __init__(self, *, pipeline: str, config: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pipeline = pipeline
        self.config = config

    def execute(self, context: Context) -> dict[str, Any]:
        """Return the status of the pipeline."""
        return asdict(read_status(self.config, self.pipeline))
