"""A task that ends the running stream after its present epoch, so that another one can start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowSkipException

from tidegate.pipelines.run.stopping import stop_driver

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context


class StopStream(BaseOperator):
    """Asks the driver that holds the lease to stop, and waits for its end; the driver may run on another host.

    Args:
        pipeline: its name in tidegate.toml.
        config: path of tidegate.toml.
        only_if: a template; if it renders to anything but `True` the task is skipped.
        patience: seconds to wait for the present epoch to end.
    """

    template_fields: Sequence[str] = ("only_if",)

    def __init__(
        self, *, pipeline: str, config: str, only_if: str = "True", patience: float = 1800, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.pipeline = pipeline
        self.config = config
        self.only_if = only_if
        self.patience = patience

    def execute(self, context: Context) -> str:
        """Stop the driver, and return its name; `nobody` if none was at work.

        Raises:
            LeaseHeld: the driver did not end in time.
        """
        if str(self.only_if) != "True":
            raise AirflowSkipException("this run does not take over from a running stream")
        return stop_driver(self.config, self.pipeline, self.patience, self.log.info) or "nobody"
