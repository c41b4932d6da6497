"""Cases of kind `evictor`: what the function sees of a window, and what remains."""

from __future__ import annotations

from typing import Any

from tests.transcripts.build import build_evictor
from tests.transcripts.case import CASE_FIELDS, Options, check_fields, expect_equal
from tests.transcripts.steps import Clocks, built, walk
from tidegate.windowing.evictors import Evictor, TimestampedValue
from tidegate.windowing.windows import GLOBAL_WINDOW


def run_evictor(case: dict[str, Any], options: Options) -> None:
    """Run a case."""
    check_fields(case["id"], case, CASE_FIELDS | {"evictor", "elements", "seen_by_function", "kept", "expect_error"})
    evictor = built(case, lambda: build_evictor(case["evictor"]))
    if evictor is not None:
        walk(case, [evictor], lambda index, made: _evict(case, made))


def _evict(case: dict[str, Any], evictor: Evictor) -> None:
    elements = []
    for raw in case["elements"]:
        check_fields("element", raw, {"value", "ts"})
        elements.append(TimestampedValue(raw["value"], raw["ts"]))
    seen = evictor.evict_before(elements, GLOBAL_WINDOW, Clocks())
    expect_equal("seen_by_function", case["seen_by_function"], [element.value for element in seen])
    kept = evictor.evict_after(seen, GLOBAL_WINDOW, Clocks())
    expect_equal("kept", case["kept"], [element.value for element in kept])
