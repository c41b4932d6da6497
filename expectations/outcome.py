"""The outcome of one expectation, over all parts of the rows that it was checked on."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

_ABOUT = ("column_list", "column", "column_A", "column_B", "key")
_LENGTHS = ("size", "slide", "offset", "length")
"""Parameters in milliseconds."""

_EXAMPLES = 5


@dataclass
class Outcome:
    """The outcome of an expectation, over all parts of its rows.

    Args:
        expectation: its configuration from Great Expectations.
        severity: critical, warning or info.
        success: True if it holds.
        rows: number of checked rows.
        unexpected: number of rows that break it; None if it is not about single rows.
        observed: the value that was observed in a part.
        examples: some of the rows that break it.
    """

    expectation: Any
    severity: str
    success: bool = True
    rows: int = 0
    unexpected: int | None = None
    observed: str = ""
    examples: list[Any] = field(default_factory=list)

    def take(self, result: Any, rows: int) -> None:
        """Add the result of a part."""
        raw = result.result or {}
        self.success &= bool(result.success)
        self.rows += rows
        if "unexpected_count" in raw:
            self.unexpected = (self.unexpected or 0) + int(raw["unexpected_count"])
        if raw.get("observed_value") is not None:
            self.observed = str(raw["observed_value"])
        self.observed = self.observed or next(
            (error["exception_message"] for error in _exceptions(result) if error.get("exception_message")), ""
        )
        left = _EXAMPLES - len(self.examples)
        self.examples += list(raw.get("partial_unexpected_list") or ())[:left] if not result.success else []

    @property
    def summary(self) -> str:
        """Return the observation as text."""
        if self.unexpected is None:
            return self.observed
        return f"{self.unexpected} of {self.rows} rows break it"

    @property
    def about(self) -> str:
        """Return the columns or limits of the expectation as text."""
        return _about(self.expectation.kwargs)


def _about(kwargs: dict[str, Any]) -> str:
    parts = [kwargs[name] for name in _ABOUT if kwargs.get(name) is not None]
    columns = [", ".join(map(str, part)) if isinstance(part, list) else str(part) for part in parts]
    lengths = {name: kwargs[name] for name in _LENGTHS if kwargs.get(name)}
    return ", ".join([*columns, *(f"{name} {timedelta(milliseconds=value)}" for name, value in lengths.items())])


def _exceptions(result: Any) -> list[dict[str, Any]]:
    info = result.exception_info or {}
    return [info] if "exception_message" in info else [item for item in info.values() if isinstance(item, dict)]
