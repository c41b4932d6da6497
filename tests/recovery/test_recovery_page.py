"""docs/operations/recovery.md names exactly the existing steps and protections."""

from __future__ import annotations

from pathlib import Path

from tests.recovery.arrivals import WITH_WINDOWS
from tests.recovery.bugs import BUGS

PAGE = (Path(__file__).parents[2] / "docs" / "operations" / "recovery.md").read_text()


def first_column(section: str) -> list[str]:
    """Return the first cells of a section's first table."""
    _, _, text = PAGE.partition(f"## {section}\n")
    rows = [line for line in text.partition("\n## ")[0].splitlines() if line.startswith("|")]
    return [row.split("|")[1].strip().strip("`") for row in rows[2:]]


def test_the_page_has_every_step_in_order() -> None:
    assert first_column("The steps of an epoch") == list(WITH_WINDOWS)


def test_the_page_has_every_protection() -> None:
    assert first_column("What recovery relies on") == [bug.rule for bug in BUGS]
