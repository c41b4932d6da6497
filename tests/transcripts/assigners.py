"""Cases of kinds `assign`, `window_start`, `intersects` and `stagger`."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.transcripts.build import DynamicGap, build_assigner, build_trigger
from tests.transcripts.case import CASE_FIELDS, Mismatch, Options, check_fields, expect_equal, only_field, run_expecting
from tests.transcripts.doubles import window_text
from tests.transcripts.steps import Clocks, built, walk
from tidegate.windowing.assigners import WindowAssigner, WindowStagger
from tidegate.windowing.time import window_start
from tidegate.windowing.windows import TimeWindow


def run_assign(case: dict[str, Any], options: Options) -> None:
    """Run a case: assigner, its properties, the windows of each check in order of assignment."""
    check_fields(
        case["id"], case, CASE_FIELDS | {"assigner", "checks", "is_event_time", "default_trigger", "expect_error"}
    )
    gap = DynamicGap()
    assigner = built(case, lambda: build_assigner(case["assigner"], gap))
    if assigner is None:
        return
    if "is_event_time" in case:
        expect_equal("is_event_time", case["is_event_time"], assigner.is_event_time)
    if "default_trigger" in case:
        expected = build_trigger({"type": case["default_trigger"]})
        expect_equal("default_trigger", expected, assigner.get_default_trigger())
    checks = AssignerChecks(assigner, gap)
    error = case.get("expect_error")
    if error is None or error["at"] != "assign":
        walk(case, case["checks"], checks.check)
    else:
        run_expecting(error, "assign", partial(checks.check_all, case["checks"]))


class AssignerChecks:
    """An assigner that is asked for the windows of one element after the other."""

    def __init__(self, assigner: WindowAssigner, gap: DynamicGap) -> None:
        self._assigner = assigner
        self._gap = gap

    def check_all(self, checks: list[dict[str, Any]]) -> None:
        """Compare the windows of every element."""
        for index, check in enumerate(checks):
            self.check(index, check)

    def check(self, index: int, check: dict[str, Any]) -> None:
        """Compare the windows of one element."""
        check_fields(f"check {index}", check, {"ts", "processing_time", "gap", "windows"})
        context = Clocks(current_processing_time=check.get("processing_time", 0))
        self._gap.gap = check.get("gap", 0)
        # As in an operator, the stagger is chosen when the first element arrives.
        self._assigner = self._assigner.staggered(context.current_processing_time)
        windows = self._assigner.assign_windows(None, check["ts"], context)
        expect_equal(f"windows of check {index}", check["windows"], [window_text(window) for window in windows])


def run_window_start(case: dict[str, Any], options: Options) -> None:
    """Run literal checks of a window's start."""
    check_fields(case["id"], case, CASE_FIELDS | {"checks"})
    for check in case["checks"]:
        check_fields("check", check, {"ts", "offset", "size", "start"})
        expect_equal(f"start of {check}", check["start"], window_start(check["ts"], check["offset"], check["size"]))


def run_intersects(case: dict[str, Any], options: Options) -> None:
    """Run literal checks of windows that overlap, touch, or neither, in both directions."""
    check_fields(case["id"], case, CASE_FIELDS | {"checks"})
    for check in case["checks"]:
        check_fields("check", check, {"a", "b", "intersects", "cover"})
        a, b = TimeWindow(*check["a"]), TimeWindow(*check["b"])
        only_field("check", check, {"intersects"})
        expect_equal(f"intersects of {check}", [check["intersects"]] * 2, [a.intersects(b), b.intersects(a)])
        if "cover" in check:
            expect_equal(f"cover of {check}", check["cover"], window_text(a.cover(b)))


def run_stagger(case: dict[str, Any], options: Options) -> None:
    """Run literal checks of the offset that a stagger draws: a value, or bounds for a random one."""
    check_fields(case["id"], case, CASE_FIELDS | {"checks", "expect_error"})
    walk(case, case["checks"], _check_stagger)


def _check_stagger(index: int, check: dict[str, Any]) -> None:
    where = f"check {index}"
    check_fields(where, check, {"stagger", "processing_time", "size", "offset", "at_least", "less_than"})
    if not {"offset", "at_least", "less_than"} & set(check):
        raise Mismatch(where, "offset, or at_least and less_than", check)
    offset = WindowStagger(check["stagger"]).draw(check.get("processing_time", 0), check["size"])
    if "offset" in check:
        expect_equal(f"offset of {where}", check["offset"], offset)
    if not check.get("at_least", offset) <= offset < check.get("less_than", offset + 1):
        raise Mismatch(f"offset of {where}", check, offset)
