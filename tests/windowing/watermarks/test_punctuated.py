from __future__ import annotations

from tidegate.windowing.testing import RecordingOutput
from tidegate.windowing.watermarks import PunctuatedWatermarks


def test_only_events_that_say_so_emit() -> None:
    output = RecordingOutput()
    generator = PunctuatedWatermarks(lambda event, timestamp: timestamp - 1 if event == "marker" else None)
    generator.on_event("marker", 10, output)
    generator.on_event("event", 20, output)
    generator.on_periodic_emit(output)
    generator.on_event("marker", 30, output)
    assert output.take() == [9, 29]


def test_there_is_nothing_to_snapshot() -> None:
    generator = PunctuatedWatermarks(lambda event, timestamp: timestamp)
    assert generator.snapshot() == {}
    generator.restore({})
