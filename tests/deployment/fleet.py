"""A user's pipeline on the cluster: its function is in a module that only the driver's folder contains."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pyarrow as pa

from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.windowing import EventTimeSessionWindows, ProcessWindowFunction, WatermarkStrategy, Windows


class Legs(ProcessWindowFunction):
    """Number of flights of an aircraft in a session, and the longest of them."""

    result_type = pa.struct([("flights", pa.int64()), ("longest_leg", pa.int64())])

    def process(self, key: Any, ctx: Any, elements: Any) -> Iterator[dict[str, int]]:
        distances = [element["distance"] for element in elements]
        yield {"flights": len(distances), "longest_leg": max(distances)}


fleet = Pipeline(
    name="fleet",
    source=DeltaSource("flights", timestamp="departed_at"),
    key=("tailnum",),
    watermark=WatermarkStrategy.for_bounded_out_of_orderness(timedelta(hours=25)),
    compute=Windows(EventTimeSessionWindows.with_gap(timedelta(hours=3)), process=Legs()),
)
