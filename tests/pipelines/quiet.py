"""A process function for tests over the columns user, at and value, and the pipeline that runs it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tests.lake import hourly_pipeline
from tidegate.pipelines import Pipeline
from tidegate.windowing import KeyedProcess, KeyedProcessFunction
from tidegate.windowing.state import ValueStateDescriptor

QUIET = 600_000


class Quiet(KeyedProcessFunction):
    """The sum of a user's values once the user has had no input for ten minutes."""

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
    return hourly_pipeline("quiet", compute=KeyedProcess(function or Quiet(), time_sorted=False), **options)
