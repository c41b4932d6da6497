"""Cases of kinds `merge_windows` and `merging_window_set`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tests.transcripts.build import DynamicGap, build_assigner
from tests.transcripts.case import CASE_FIELDS, Mismatch, Options, check_fields, expect_equal, only_field
from tests.transcripts.doubles import ScriptedMergingAssigner, window_text
from tests.transcripts.steps import built, expect_same, walk_steps
from tidegate.windowing.assigners import MergingWindowAssigner
from tidegate.windowing.merging import MergingWindowSet
from tidegate.windowing.windows import Merge, TimeWindow, merge_time_windows

_STEPS: dict[str, set[str]] = {
    "add": {"result", "merged"},
    "state_window": {"is", "one_of"},
    "retire": set(),
    "restore": set(),
    "persisted": set(),
    "set_merge": set(),
}


def run_merge_windows(case: dict[str, Any], options: Options) -> None:
    """Run a case: which groups of windows merge into what."""
    check_fields(case["id"], case, CASE_FIELDS | {"windows", "merges", "assigner"})
    windows = [TimeWindow(*window) for window in case["windows"]]
    merges = _merging(case["assigner"]).merge_windows(windows) if "assigner" in case else merge_time_windows(windows)
    for merge in case["merges"]:
        check_fields("merge", merge, {"sources", "result"})
    expected = [{"sources": sorted(merge["sources"]), "result": merge["result"]} for merge in case["merges"]]
    came = [{"sources": sorted(map(list, merge.sources)), "result": list(merge.result)} for merge in merges]
    expect_same("merges", expected, came)


def run_merging_window_set(case: dict[str, Any], options: Options) -> None:
    """Run a case."""
    check_fields(case["id"], case, CASE_FIELDS | {"assigner", "steps", "expect_error"})
    assigner = built(case, lambda: _merging(case["assigner"]))
    if assigner is not None:
        walk_steps(case, _STEPS, MergingCase(assigner, options).step)


def _merging(raw: dict[str, Any]) -> MergingWindowAssigner:
    assigner = build_assigner(raw, DynamicGap())
    if not isinstance(assigner, MergingWindowAssigner):
        raise Mismatch("assigner", "one whose windows merge", raw)
    return assigner


class StateWindows:
    """The set of windows in flight, with the state window of each as Flink names them. A merge keeps the state window
    with the smallest start, because Flink leaves open which of them remains.
    """

    def __init__(self, assigner: MergingWindowAssigner, restored: Iterable[tuple[TimeWindow, TimeWindow]] = ()) -> None:
        self.of = dict(restored)
        self.in_flight = MergingWindowSet(assigner, self.of)

    def add(self, window: TimeWindow, on_merge: Callable[[Merge, list[TimeWindow]], None]) -> TimeWindow:
        """Add a window; each merge is reported with the state windows of its sources, the first of which remains."""
        addition = self.in_flight.plan(window)
        for merge in addition.merges:
            states = sorted(self.of.pop(source) for source in merge.sources)
            on_merge(merge, states)
            self.of[merge.result] = states[0]
        self.in_flight.apply(addition)
        self.of.setdefault(addition.window, window)
        return addition.window

    def retire(self, window: TimeWindow) -> None:
        """Remove a window."""
        self.in_flight.retire(window)
        del self.of[window]

    def persisted(self) -> list[tuple[TimeWindow, TimeWindow]]:
        """Return the pairs (window, state window) that Flink's snapshot contains."""
        return [(window, self.of[window]) for window in self.in_flight]


class MergingCase:
    """A merging window set that is fed the steps of a case."""

    def __init__(self, assigner: MergingWindowAssigner, options: Options) -> None:
        self.assigner = assigner
        self.options = options
        self.set = StateWindows(assigner)

    def step(self, where: str, kind: str, step: dict[str, Any]) -> None:
        """Carry out one step, and compare."""
        raw = step[kind]
        match kind:
            case "add":
                self._add(where, step)
            case "state_window":
                self._state_window(where, step)
            case "retire":
                self.set.retire(TimeWindow(*raw))
            case "restore":
                pairs = [(TimeWindow(*window), TimeWindow(*state)) for window, state in raw]
                self.set = StateWindows(self.assigner, pairs)
            case "persisted":
                came = [[window_text(window), window_text(state)] for window, state in self.set.persisted()]
                expect_same(f"persisted at {where}", raw, came)
            case "set_merge":
                if not isinstance(self.assigner, ScriptedMergingAssigner):
                    raise Mismatch(where, "a scripted merging assigner", self.assigner)
                check_fields(where, raw, {"sources", "result", "expect_windows"})
                self.assigner.merge = raw
        if self.options.restore_every_step:
            self.set = StateWindows(self.assigner, self.set.persisted())

    def _add(self, where: str, step: dict[str, Any]) -> None:
        merges: list[tuple[Merge, list[TimeWindow]]] = []
        result = self.set.add(TimeWindow(*step["add"]), lambda *merge: merges.append(merge))
        expect_equal(f"result of {where}", step["result"], window_text(result))
        if "merged" not in step:
            return
        expected = step["merged"]
        if expected is None or not merges:
            expect_equal(f"merged at {where}", expected, merges or None)
            return
        if len(merges) > 1:
            raise Mismatch(f"merged at {where}", "one merge", merges)
        merge, states = merges[0]
        check_fields(where, expected, {"target", "sources", "state_window_one_of", "merged_state_windows_one_of"})
        expect_equal(f"target of {where}", expected["target"], window_text(merge.result))
        expect_same(f"sources of {where}", expected["sources"], [window_text(source) for source in merge.sources])
        kept, *gone = map(window_text, states)
        allowed = [sorted(states) for states in expected["merged_state_windows_one_of"]]
        if kept not in expected["state_window_one_of"] or gone not in allowed:
            raise Mismatch(f"state windows of {where}", expected, {"kept": kept, "merged away": gone})

    def _state_window(self, where: str, step: dict[str, Any]) -> None:
        state = self.set.of.get(TimeWindow(*step["state_window"]))
        came = None if state is None else window_text(state)
        if only_field(where, step, {"is", "one_of"}) == "is":
            expect_equal(f"state window of {where}", step["is"], came)
        elif came not in step["one_of"]:
            raise Mismatch(f"state window of {where}", f"one of {step['one_of']}", came)
