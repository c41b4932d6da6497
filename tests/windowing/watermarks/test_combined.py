from __future__ import annotations

import pytest

from tidegate.windowing.errors import IllegalArgument, IllegalState
from tidegate.windowing.time import MIN_TIMESTAMP
from tidegate.windowing.watermarks import CombinedWatermark


def combined(**marks: int) -> CombinedWatermark:
    made = CombinedWatermark(marks)
    for name, mark in marks.items():
        made[name].advance(mark)
    made.update()
    return made


def test_it_is_the_smallest_of_the_active_inputs() -> None:
    inputs = combined(a=3, b=5, c=4)
    inputs["a"].idle = True
    assert inputs.update()
    assert inputs.watermark == 4


def test_it_stays_where_it_is_when_all_inputs_are_idle() -> None:
    inputs = combined(a=3, b=5)
    inputs["a"].idle = inputs["b"].idle = True
    assert not inputs.update()
    assert (inputs.watermark, inputs.idle) == (3, True)


def test_a_new_input_holds_it_and_a_removed_one_lets_go() -> None:
    inputs = combined(a=3)
    inputs.add("b")
    inputs["a"].advance(9)
    assert not inputs.update()
    assert inputs.remove("b")
    assert not inputs.remove("b")
    assert inputs.update()
    assert inputs.watermark == 9


def test_without_inputs_there_is_nothing_to_combine() -> None:
    inputs = CombinedWatermark()
    assert not inputs.update()
    assert (inputs.watermark, inputs.idle) == (MIN_TIMESTAMP, False)


def test_inputs_are_known_by_name() -> None:
    with pytest.raises(IllegalState, match="'a' is registered already"):
        combined(a=1).add("a")
    with pytest.raises(IllegalArgument, match=r"input = 'b': register it first; registered are"):
        combined(a=1)["b"]
