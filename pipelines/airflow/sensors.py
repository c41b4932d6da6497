"""A sensor that waits until a pipeline has a newer snapshot, or its watermark has passed a given time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from tidegate.pipelines.observe.inspect.status import read_status, shown_time

if TYPE_CHECKING:
    from airflow.sdk import Context

_NONE = ("", "None")


class SnapshotSensor(BaseSensorOperator):
    """Waits for a pipeline, and then returns the pipeline's status.

    Args:
        pipeline: its name in tidegate.toml.
        config: path of tidegate.toml, best built from the path of the DAG file: Airflow's processes run in other
            folders.
        newer_than: wait for a snapshot of a later epoch than this, ignoring restores; a number or a template.
        watermark_past: wait until elements before this time can no longer be on time; ISO text or a template of it.
        only_if: a template; if it renders to anything but `True`, the task is skipped.
        driver: task of the same run that drives the pipeline: after it ends, there will be no further snapshot.
        deferrable: True waits in the triggerer, without a worker slot; False polls according to `mode`.

    Example:
        >>> from pathlib import Path
        >>> yesterday = SnapshotSensor(
        ...     task_id="yesterday_is_final",
        ...     pipeline="aircraft_duty",
        ...     config=Path(__file__).parent / "tidegate.toml",
        ...     watermark_past="{{ data_interval_end }}",
        ... )
    """

    template_fields: Sequence[str] = ("newer_than", "watermark_past", "only_if")
    ui_color = "#e6f0d6"

    def __init__(
        self,
        *,
        pipeline: str,
        config: str | Path,
        newer_than: int | str | None = None,
        watermark_past: str | None = None,
        only_if: str = "True",
        driver: str | None = None,
        deferrable: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.pipeline = pipeline
        self.config = str(config)
        self.newer_than = newer_than
        self.watermark_past = watermark_past
        self.only_if = only_if
        self.driver = driver
        self.deferrable = deferrable

    def execute(self, context: Context) -> Any:
        """Return immediately if the pipeline has already reached the snapshot or watermark; otherwise wait."""
        if str(self.only_if) != "True":
            raise AirflowSkipException(f"not needed: {self.only_if!r}")
        if not self.deferrable:
            return super().execute(context)
        newer_than, watermark_past = self._awaited()
        from tidegate.pipelines.airflow.triggers import SnapshotTrigger, has_reached

        status = read_status(self.config, self.pipeline)
        if not has_reached(status, newer_than, watermark_past):
            trigger = SnapshotTrigger(
                self.config, self.pipeline, newer_than, watermark_past, self.poke_interval, self._driver(context)
            )
            self.defer(trigger=trigger, method_name="resume", timeout=timedelta(seconds=self.timeout))
        return asdict(status)

    def poke(self, context: Context) -> PokeReturnValue:
        """Return whether the pipeline has reached the snapshot or watermark, with its status.

        Raises:
            AirflowFailException: the driver's task ended before that.
        """
        from tidegate.pipelines.airflow.triggers import end_of, has_reached

        newer_than, watermark_past = self._awaited()
        driver = self._driver(context)
        # The driver's end is read before the snapshot, so an epoch that it commits in between still counts.
        ended = None if driver is None else end_of(driver)
        status = read_status(self.config, self.pipeline)
        if has_reached(status, newer_than, watermark_past):
            return PokeReturnValue(is_done=True, xcom_value=asdict(status))
        if ended is not None:
            self.resume(context, {"ended": ended})
        return PokeReturnValue(is_done=False)

    def resume(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Return the status that the trigger saw.

        Raises:
            AirflowFailException: the driver's task ended before the pipeline reached the snapshot or watermark.
        """
        if "ended" in event:
            raise AirflowFailException(
                f"task {self.driver} ended ({event['ended']}) before {self.pipeline} reached the epoch or "
                f"watermark that this task waits for; see the log of {self.driver}"
            )
        self.log.info("epoch %s, watermark %s", event["epoch"], shown_time(event["watermark"]))
        return event

    def _driver(self, context: Context) -> dict[str, str] | None:
        if self.driver is None:
            return None
        instance = context["ti"]
        return {"dag_id": instance.dag_id, "run_id": instance.run_id, "task_id": self.driver}

    def _awaited(self) -> tuple[int | None, str | None]:
        newer_than = None if str(self.newer_than) in _NONE else int(str(self.newer_than))
        watermark_past = None if str(self.watermark_past) in _NONE else str(self.watermark_past)
        if newer_than is None and watermark_past is None:
            raise AirflowFailException("give newer_than= or watermark_past=: there is nothing to wait for")
        if watermark_past is not None:
            moment = datetime.fromisoformat(watermark_past)
            if moment.tzinfo is None:
                raise AirflowFailException(f"watermark_past={watermark_past!r}: give a zone, such as +00:00")
        return newer_than, watermark_past
