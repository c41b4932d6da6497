"""A job for Flink's own Python: session windows of the DataStream interface with an AggregateFunction in Python.

    python stream_windows.py FOLDER

FOLDER is that of `sql_windows`. The job prints the net seconds of the scan and of the windows as JSON. It imports
nothing of ours.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyflink.common import Duration, Time, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import AggregateFunction, DataStream, StreamExecutionEnvironment
from pyflink.datastream.connectors.base import Sink
from pyflink.datastream.connectors.file_system import FileSource, StreamFormat
from pyflink.datastream.window import EventTimeSessionWindows
from pyflink.java_gateway import get_gateway

TASKS = 2
_EVENT = Types.TUPLE([Types.STRING(), Types.LONG(), Types.LONG()])


class EventTime(TimestampAssigner):
    """The event time of a row: its second column, epoch milliseconds."""

    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(value[1])


class CountAndSum(AggregateFunction):
    """The number of events, and the sum of their values."""

    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: Any, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + 1, accumulator[1] + value[2]

    def get_result(self, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator

    def merge(self, a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
        return a[0] + b[0], a[1] + b[1]


def parsed(line: str) -> tuple[str, int, int]:
    """Return the row of a CSV line."""
    key, moment, value = line.split(",")
    return key.strip('"'), int(moment), int(value)


def events(environment: StreamExecutionEnvironment, folder: str) -> DataStream:
    """Return the events with a watermark a minute behind."""
    source = FileSource.for_record_stream_format(StreamFormat.text_line_format(), folder).build()
    lines = environment.from_source(source, WatermarkStrategy.no_watermarks(), "events")
    watermarks = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_minutes(1))
    return lines.map(parsed, _EVENT).assign_timestamps_and_watermarks(watermarks.with_timestamp_assigner(EventTime()))


def net_seconds(environment: StreamExecutionEnvironment, stream: DataStream) -> float:
    """Run a stream into a discarding sink, and return its net seconds, without the start of the cluster."""
    discarding = get_gateway().jvm.org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink()
    stream.sink_to(Sink(discarding))
    return float(environment.execute().get_net_runtime()) / 1000


def main(folder: str) -> None:
    """Print seconds of the scan and of session windows."""
    environment = StreamExecutionEnvironment.get_execution_environment()
    environment.set_parallelism(TASKS)
    environment.set_python_executable(sys.executable)
    scan = net_seconds(environment, events(environment, folder))
    print(json.dumps({"job": "scan", "seconds": scan}), flush=True)
    sessions = (
        events(environment, folder)
        .key_by(lambda event: event[0], Types.STRING())
        .window(EventTimeSessionWindows.with_gap(Time.minutes(10)))
        .aggregate(
            CountAndSum(),
            accumulator_type=Types.TUPLE([Types.LONG(), Types.LONG()]),
            output_type=Types.TUPLE([Types.LONG(), Types.LONG()]),
        )
    )
    print(json.dumps({"job": "session", "seconds": net_seconds(environment, sessions)}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
