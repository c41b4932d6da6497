"""Cases of kinds `keyed_process`, `keyed_co_process` and `interval_join`."""

from __future__ import annotations

from typing import Any

from tests.transcripts.case import CASE_FIELDS, Options, check_fields, expect_equal, only_field
from tests.transcripts.process_functions import CaseCoFunction, CaseKeyedFunction
from tests.transcripts.steps import built, by_step, expect_same, expect_subsequence, walk
from tidegate.windowing.compute import IntervalJoin
from tidegate.windowing.operators.records import ElementResult, LateElement, Record, SideOutput, WatermarkRecord
from tidegate.windowing.sides import LEFT, RIGHT
from tidegate.windowing.testing import OperatorHarness, co_process_harness, interval_join_harness, keyed_process_harness

_ONE_INPUT = {"element", "watermark", "processing_time", "snapshot_restore", "snapshot_rescale"}
_TWO_INPUTS = _ONE_INPUT - {"element"} | {"element1", "element2", "watermark1", "watermark2", "idle1", "idle2"}
_SIDES = {"1": LEFT, "2": RIGHT}
_NUMBERS = {LEFT: 1, RIGHT: 2}


def run_keyed_process(case: dict[str, Any], options: Options) -> None:
    """Run a case: exact order within a step."""
    check_fields(case["id"], case, CASE_FIELDS | {"function", "steps", "expect", "expect_error"})
    harness = built(case, lambda: keyed_process_harness(CaseKeyedFunction(case["function"])))
    if harness is not None:
        OperatorCase(case, options, harness, _ONE_INPUT).run()


def run_keyed_co_process(case: dict[str, Any], options: Options) -> None:
    """Run a case: exact order within a step."""
    check_fields(case["id"], case, CASE_FIELDS | {"function", "steps", "expect", "expect_error"})
    harness = built(case, lambda: co_process_harness(CaseCoFunction(case["function"])))
    if harness is not None:
        OperatorCase(case, options, harness, _TWO_INPUTS).run()


class OperatorCase:
    """An operator with one or two inputs that is fed the steps of a case."""

    def __init__(self, case: dict[str, Any], options: Options, harness: OperatorHarness, steps: set[str]) -> None:
        self.case = case
        self.options = options
        self.harness = harness
        self.steps = steps
        self.forgets_time = "restore_watermark" in case.get("tags", ())
        self.restored = False
        self.expected = by_step(case, "expect")
        self.probes = by_step(case, "probes")

    def run(self) -> None:
        """Feed every step, and compare after each."""
        walk(self.case, self.case["steps"], self._step)

    def _step(self, index: int, step: dict[str, Any]) -> None:
        kind = only_field(f"step {index}", step, self.steps)
        check_fields(f"step {index}", step, {kind})
        self.feed(kind, step[kind])
        self.compare(f"after step {index}", self.expected.get(index, []), self.harness.records())
        for probe in self.probes.get(index, ()):
            self.probe(f"after step {index}", probe)
        if self.options.restore_every_step:
            self._restore(self.options.rescale or len(self.harness.subtasks), True)

    def feed(self, kind: str, raw: Any) -> None:
        """Carry out one step."""
        harness, side = self.harness, _SIDES.get(kind[-1])
        match kind.rstrip("12"):
            case "element":
                check_fields(kind, raw, {"key", "value", "ts"})
                harness.element(raw["key"], raw["value"], raw["ts"], side)
            case "watermark":
                harness.watermark(raw, side)
            case "idle":
                harness.idle(side, raw)
            case "processing_time":
                harness.processing_time(raw)
            case "snapshot_restore":
                self._restore(len(harness.subtasks), not self.forgets_time)
            case _:
                check_fields(kind, raw, {"parallelism"})
                self._restore(raw["parallelism"], not self.forgets_time)

    def _restore(self, parallelism: int, with_time: bool) -> None:
        self.harness.restore(self.harness.snapshot(), parallelism, with_time)
        self.restored = True

    def compare(self, where: str, expected: list[dict[str, Any]], records: list[Record]) -> None:
        """Compare outputs in order. A restore reads keys in another order than they came in, and subtasks run in
        parallel: then the order is fixed only within each key.
        """
        for output in expected:
            check_fields(where, output, {"value", "ts", "watermark", "side", "key"})
        shown = [(record, _text(record, expected)) for record in records]
        came = [output for _, output in shown if output is not None]
        if not self.restored:
            expect_equal(where, expected, came)
            return
        expect_same(where, expected, came)
        keys = {repr(record.key) for record in records if isinstance(record, ElementResult)}
        for key in keys:
            of_key = [output for record, output in shown if not _of_other_key(record, key) and output is not None]
            expect_subsequence(f"of key {key} {where}", expected, of_key)

    def probe(self, where: str, probe: dict[str, Any]) -> None:
        """Inspect the operator afterwards; process functions have no probes."""


def _of_other_key(record: Record, key: str) -> bool:
    if isinstance(record, SideOutput):
        return True
    return isinstance(record, ElementResult) and repr(record.key) != key


def _text(record: Record, expected: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return a record as cases write it; a change of status is not listed."""
    if isinstance(record, ElementResult):
        text = {"value": record.value, "ts": record.timestamp}
        return text | {"key": record.key} if any("key" in output for output in expected) else text
    if isinstance(record, WatermarkRecord):
        return {"watermark": record.timestamp}
    if isinstance(record, SideOutput):
        return {"side": {"tag": record.tag, "value": record.value, "ts": record.timestamp}}
    return None


def run_interval_join(case: dict[str, Any], options: Options) -> None:
    """Run a case: results of a step in any order."""
    check_fields(case["id"], case, CASE_FIELDS | {"join", "steps", "expect", "probes", "expect_error"})
    harness = built(case, lambda: _join_harness(case["join"]))
    if harness is not None:
        JoinCase(case, options, harness, _TWO_INPUTS).run()


def _join_harness(raw: dict[str, Any]) -> OperatorHarness:
    check_fields("join", raw, {"lower", "lower_inclusive", "upper", "upper_inclusive", "late_output"})
    join = IntervalJoin(
        raw["lower"],
        raw["upper"],
        lower_inclusive=raw.get("lower_inclusive", True),
        upper_inclusive=raw.get("upper_inclusive", True),
    )
    return interval_join_harness(join, late_output=raw.get("late_output", False))


class JoinCase(OperatorCase):
    """An interval join that is fed the steps of a case."""

    def compare(self, where: str, expected: list[dict[str, Any]], records: list[Record]) -> None:
        """Compare results and late elements of a step as a multiset."""
        for output in expected:
            check_fields(where, output, {"key", "value", "ts", "late"})
        came: list[dict[str, Any]] = []
        for record in records:
            if isinstance(record, ElementResult):
                came.append({"key": record.key, "value": list(record.value), "ts": record.timestamp})
            elif isinstance(record, LateElement) and record.side is not None:
                late = {"side": _NUMBERS[record.side], "value": record.value, "ts": record.timestamp}
                came.append({"late": late})
        expect_same(where, expected, came)

    def probe(self, where: str, probe: dict[str, Any]) -> None:
        """Compare the times of the buckets of each side."""
        check_fields("probe", probe, {"left_buffer", "right_buffer"})
        rows = [row for subtask in self.harness.subtasks for row in subtask.state_rows()]
        for side in (LEFT, RIGHT):
            times = sorted(row.window[0] for row in rows if row.side == side and row.window)
            expect_equal(f"{side}_buffer {where}", sorted(probe.get(f"{side}_buffer", times)), times)
