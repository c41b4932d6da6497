"""Every public trigger, assigner, evictor and aggregate is among those that the contracts test, and in the guide."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.property.columnar_cases import AGGREGATES
from tests.windowing.contracts import test_assigners, test_evictors, test_triggers
from tidegate import windowing
from tidegate.windowing.aggregates import Aggregate
from tidegate.windowing.assigners import WindowAssigner
from tidegate.windowing.evictors import Evictor
from tidegate.windowing.triggers import Trigger

GUIDE = Path(__file__).parent.parent.parent.parent / "docs" / "guide"

KINDS: dict[str, tuple[type, Iterable[object]]] = {
    "triggers": (Trigger, test_triggers.ALL),
    "assigners": (WindowAssigner, test_assigners.ALL),
    "evictors": (Evictor, test_evictors.ALL),
    "aggregates": (Aggregate, AGGREGATES.values()),
}
"""The base class of each page's parts, and the values that tests of every part run with."""


def public(base: type) -> set[type]:
    parts = (getattr(windowing, name) for name in windowing.__all__)
    return {part for part in parts if inspect.isclass(part) and issubclass(part, base) and part is not base}


@pytest.mark.parametrize("page", KINDS)
def test_every_public_part_is_tested_with_its_kind(page: str) -> None:
    base, values = KINDS[page]
    assert sorted(part.__name__ for part in public(base) - {type(value) for value in values}) == []


@pytest.mark.parametrize("page", KINDS)
def test_every_public_part_is_on_its_page_of_the_guide(page: str) -> None:
    text = (GUIDE / f"{page}.md").read_text()
    assert sorted(part.__name__ for part in public(KINDS[page][0]) if f"`{part.__name__}" not in text) == []
