"""A process function for tests over the columns user, at and value, and the pipeline that runs it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pyarrow as pa

from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.windowing import KeyedProcess, KeyedProcessFunction, WatermarkStrategy
from tidegate.windowing.state import ValueStateDescriptor

QUIET = 600_000


class Quiet(KeyedProcessFunction):
    """The sum of a user's values once the user was quiet for ten minutes."""

    result_type = pa.struct([("total", pa.int64())])
    total = ValueStateDescriptor("total", pa.int64())

    def states(self) -> list[Any]:
        return [self.total]

    def process_element(self, value: dict[str, Any], ctx: Any) -> None:
        state = ctx.get_state(self.total)
        state.update((state.value() or 0) + value["value"])
        ctx.timer_service().register_event_time_timer(ctx.timestamp + QUIET)

    def on_timer(self, timestamp: int, ctx: Any) -> list[dict[str, Any]]:
        return [{"total": ctx.get_state(self.total).value()}]


def quiet_pipeline(function: KeyedProcessFunction | None = None, **options: Any) -> Pipeline:
    return Pipeline(
        name="quiet",
        source=DeltaSource("events", timestamp="at"),
        key=("user",),
        watermark=WatermarkStrategy.for_bounded_out_of_orderness(timedelta(hours=1)),
        compute=KeyedProcess(function or Quiet(), time_sorted=False),
        **options,
    )
