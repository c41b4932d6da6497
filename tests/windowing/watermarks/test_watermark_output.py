from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate.windowing.operators.records import IdleRecord, WatermarkRecord
from tidegate.windowing.watermarks import WatermarkToDataOutput

STEPS = st.lists(st.integers(-5, 5) | st.sampled_from(["idle", "active"]), max_size=20)


def feed(output: WatermarkToDataOutput, steps: list[int | str]) -> None:
    for step in steps:
        if step == "idle":
            output.mark_idle()
        elif step == "active":
            output.mark_active()
        else:
            output.emit_watermark(step)  # type: ignore[arg-type]


@given(STEPS)
def test_watermarks_only_advance_and_status_only_changes(steps: list[int | str]) -> None:
    records: list[WatermarkRecord | IdleRecord] = []
    feed(WatermarkToDataOutput(records.append), steps)
    watermarks = [record.timestamp for record in records if isinstance(record, WatermarkRecord)]
    statuses = [record.idle for record in records if isinstance(record, IdleRecord)]
    assert watermarks == sorted(set(watermarks))
    assert statuses == [position % 2 == 0 for position in range(len(statuses))]


@given(STEPS)
def test_no_watermark_goes_out_while_idle(steps: list[int | str]) -> None:
    records: list[WatermarkRecord | IdleRecord] = []
    feed(WatermarkToDataOutput(records.append), steps)
    idle = False
    for record in records:
        if isinstance(record, IdleRecord):
            idle = record.idle
        else:
            assert not idle


@given(STEPS, st.integers(0, 20))
def test_a_snapshot_at_any_point_changes_nothing(steps: list[int | str], cut: int) -> None:
    straight: list[WatermarkRecord | IdleRecord] = []
    feed(WatermarkToDataOutput(straight.append), steps)
    records: list[WatermarkRecord | IdleRecord] = []
    before, after = WatermarkToDataOutput(records.append), WatermarkToDataOutput(records.append)
    feed(before, steps[:cut])
    after.restore(before.snapshot())
    feed(after, steps[cut:])
    assert records == straight
