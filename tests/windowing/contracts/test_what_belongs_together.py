"""Code of the user that writes a thing of a snapshot in one method and reads it in another has both, or is refused."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.windowing.contracts.scripted import CountThem, Given
from tests.windowing.contracts.test_assigners import harness
from tests.windowing.contracts.test_facts import OwnGenerator, subclassed
from tidegate.windowing import Count, TumblingEventTimeWindows, WatermarkStrategy, Windows
from tidegate.windowing.assigners import WindowAssigner
from tidegate.windowing.errors import UnsupportedOperation
from tidegate.windowing.functions import AggregateFunction
from tidegate.windowing.watermarks import WatermarkGenerator

COUNT: dict[str, Any] = {"aggregate": {"n": Count()}}


@dataclass(frozen=True)
class Shifted(TumblingEventTimeWindows):
    """Windows that a draw shifts by some milliseconds, without a word of it in the offset of the stagger."""

    def staggered(self, clock: int) -> Shifted:
        return replace(self, offset=self.offset + clock % 7)


@dataclass(frozen=True)
class Rounded(TumblingEventTimeWindows):
    """Windows whose restored offset is another one than the drawn one."""

    def staggered(self, clock: int) -> Rounded:
        return self if self.stagger_offset is not None else replace(self, stagger_offset=3)

    def with_stagger(self, offset: int) -> Rounded:
        return replace(self, stagger_offset=offset // 2)


@dataclass(frozen=True)
class Third(TumblingEventTimeWindows):
    """Windows with a rule of the user's own for the draw, which the offset keeps."""

    def staggered(self, clock: int) -> Third:
        return self if self.stagger_offset is not None else self.with_stagger(self.size // 3)


@pytest.mark.parametrize("member", ["staggered", "with_stagger", "stagger_offset"])
def test_an_assigner_with_a_part_of_the_stagger_is_refused_with_the_rest(member: str) -> None:
    others = {"staggered", "with_stagger", "stagger_offset"} - {member}
    with pytest.raises(UnsupportedOperation, match=f"overrides {member} of WindowAssigner, and not ") as refused:
        Windows(subclassed(Given(True), member), **COUNT)
    assert all(other in str(refused.value) for other in others)


def test_an_assigner_with_all_of_the_stagger_or_nothing_of_it_is_taken() -> None:
    assert Windows(Given(True), **COUNT)
    assert Windows(subclassed(Given(True), "staggered", "with_stagger", "stagger_offset"), **COUNT)


@pytest.mark.parametrize("kind", [Shifted, Rounded])
def test_a_stagger_that_a_restore_would_not_bring_back_is_refused_when_it_is_drawn(
    kind: type[TumblingEventTimeWindows],
) -> None:
    run = harness(kind(10))
    run.processing_time(5)
    with pytest.raises(UnsupportedOperation, match=r"would have other windows after a restore: its stagger_offset is"):
        run.element("ann", {}, 12)


def test_a_rule_of_one_s_own_for_the_draw_is_taken_if_the_offset_keeps_it() -> None:
    run = harness(Third(9))
    run.element("ann", {}, 12)
    assert run.snapshot().stagger_offset == 3


@pytest.mark.parametrize("member", ["stored", "restored"])
def test_an_aggregate_that_only_writes_or_only_reads_its_state_is_refused(member: str) -> None:
    function = subclassed(CountThem(), member)
    with pytest.raises(UnsupportedOperation, match=f"overrides {member} of AggregateFunction, and not "):
        Windows(TumblingEventTimeWindows.of(10), aggregate=function)
    assert Windows(TumblingEventTimeWindows.of(10), aggregate=subclassed(CountThem(), "stored", "restored"))


@pytest.mark.parametrize("member", ["snapshot", "restore"])
def test_a_generator_that_only_writes_or_only_reads_its_state_is_refused(member: str) -> None:
    generator = subclassed(OwnGenerator(), member)
    with pytest.raises(UnsupportedOperation, match=f"overrides {member} of WatermarkGenerator, and not "):
        WatermarkStrategy.for_generator(lambda: generator).create_generator(lambda: 0)
    both = subclassed(OwnGenerator(), "snapshot", "restore")
    assert WatermarkStrategy.for_generator(lambda: both).create_generator(lambda: 0) is both


def test_the_pairs_are_members_of_their_bases() -> None:
    assert {"staggered", "with_stagger", "stagger_offset"} <= vars(WindowAssigner).keys()
    assert {"stored", "restored"} <= vars(AggregateFunction).keys()
    assert {"snapshot", "restore"} <= vars(WatermarkGenerator).keys()
