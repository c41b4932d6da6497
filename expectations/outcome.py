"""The outcome of one expectation, over all parts of the checked rows.

All suites of a check form one result; the `meta` of each expectation's configuration says which suite it belongs to.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from string import Template
from typing import Any

import great_expectations as gx
import numpy as np
import numpy.typing as npt
import pandas as pd
from great_expectations.core.expectation_validation_result import (
    ExpectationSuiteValidationResult,
    ExpectationValidationResult,
)

from tidegate.expectations.invariants.rule import Rule
from tidegate.expectations.invariants.tables import COMPUTED
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.ledger.tables.keys import text_of_value
from tidegate.pipelines.ledger.tables.quality import MOST_EXAMPLES, Example
from tidegate.windowing.time import show_millis

_COLUMNS = ("column_list", "column", "column_A", "column_B", "column_set", "key")
_LENGTHS = ("size", "slide", "offset", "length", "lateness")
"""Parameters in milliseconds."""
_TIMES = ("watermark", "since")
"""Parameters in epoch milliseconds."""
_OF_ALL = {
    *("id", "meta", "notes", "description", "severity", "rendered_content", "catch_exceptions", "result_format"),
    *("windows", "batch_id", "condition_parser", "ignore_row_if", "is_merging", "by_epoch", "library_metadata"),
}
"""Parameters that don't affect what an expectation requires."""
_BOUNDS = ("window_start", "window_end")
_LONGEST = 200
"""Longest text, in characters, that is shown for a value."""


@dataclass
class Outcome:
    """The outcome of an expectation, over all parts of its rows.

    `unexpected` is the number of rows that break it; None if it is not about individual rows. `observed` is the value
    seen in one part, a `number` if possible. `failing` has the rows of each part that break it, or None where they are
    unknown, and `checked` has all rows of these parts.
    """

    expectation: Any
    key: Sequence[str] = ()
    success: bool = True
    rows: int = 0
    unexpected: int | None = None
    observed: str = ""
    number: float | None = None
    examples: list[Example] = field(default_factory=list)
    failing: list[pd.DataFrame | None] = field(default_factory=list)
    checked: list[pd.DataFrame] = field(default_factory=list)

    def take(self, result: Any, rows: pd.DataFrame) -> None:
        """Add the result of a part."""
        raw = result.result or {}
        self.success &= bool(result.success)
        self.rows += len(rows)
        if "unexpected_count" in raw and "element_count" in raw:
            self.unexpected = (self.unexpected or 0) + int(raw["unexpected_count"])
        selected = (raw.get("details") or {}).get("unexpected_rows")
        if selected is not None:
            self.unexpected = (self.unexpected or 0) + len(selected)
        elif (seen := raw.get("observed_value")) is not None:
            seen = seen.item() if hasattr(seen, "item") else seen
            self.observed = shown(seen)
            self.number = float(seen) if isinstance(seen, int | float) and not isinstance(seen, bool) else None
        if result.success:
            return
        self.checked.append(rows)
        left = MOST_EXAMPLES - len(self.examples)
        places = raw.get("unexpected_index_list")
        if places is not None:
            self.failing.append(rows.loc[places])
            self.examples += [self._example(row) for row in rows.loc[places[:left]].to_dict("records")]
        elif selected is not None:
            # The query selected these columns, so all of them are shown.
            self.failing.append(pd.DataFrame(selected))
            self.examples += [self._example(row, all_columns=True) for row in selected[:left]]
        else:
            self.failing.append(None)
            values = list(raw.get("partial_unexpected_list") or ())
            self.examples += [Example("", "", shown(value)) for value in values[:left]]

    def times(self, column: str) -> npt.NDArray[Any] | None:
        """Return the times (NumPy) of the rows that break it, or None if rows are unknown or have no time.

        A query may compute its columns, so a time that no checked row has counts as unknown too.
        """
        parts = []
        for rows, checked in zip(self.failing, self.checked, strict=True):
            if rows is None or rows.empty or column not in rows or rows[column].isna().any():
                return None
            moments, known = _moments(rows[column]), _moments(checked[column])
            if moments is None or known is None or not np.isin(moments, known).all():
                return None
            parts.append(moments)
        return np.concatenate(parts) if parts else None

    @property
    def type(self) -> str:
        """Return the type of the expectation, such as `expect_column_values_to_be_unique`."""
        return str(self.expectation.expectation_type)

    @property
    def severity(self) -> str:
        """Return critical, warning or info."""
        severity = self.expectation.severity
        return str(getattr(severity, "value", severity) or "critical").lower()

    @property
    def summary(self) -> str:
        """Return what was observed, as text."""
        if self.unexpected is None:
            return self.observed
        return f"{self.unexpected} of {self.rows} rows break it"

    @property
    def about(self) -> str:
        """Return the columns and lengths of the expectation as text."""
        given = self._given
        lengths = (f"{name} {timedelta(milliseconds=given[name])}" for name in _LENGTHS[:4] if given.get(name))
        return ", ".join((*self._columns, *lengths))

    @property
    def columns(self) -> str:
        """Return the columns of the expectation as text."""
        return ", ".join(self._columns)

    @property
    def limits(self) -> str:
        """Return all parameters of the expectation except its columns, as text."""
        given = {name: value for name, value in self._given.items() if name not in (*_COLUMNS, *_OF_ALL)}
        if given.get("mostly") == 1:
            del given["mostly"]
        return ", ".join(
            f"{name} {_parameter(name, value)}"
            for name, value in given.items()
            if value is not None and value is not False
        )

    @property
    def description(self) -> str | None:
        """Return the expectation's own description, or None if it has none."""
        if isinstance(self.expectation, Rule) and not self.expectation.description:
            given = {name: shown(value) for name, value in self._given.items()}
            return Template(self.expectation.text).safe_substitute(given)
        return self.expectation.description or None

    @property
    def _given(self) -> dict[str, Any]:
        # The configuration omits defaults that a user's own class sets.
        return {name: getattr(self.expectation, name) for name in self.expectation.__fields__}

    @property
    def _columns(self) -> list[str]:
        given = [self._given.get(name) for name in _COLUMNS]
        return [
            ", ".join(map(str, part)) if isinstance(part, list | tuple | set) else str(part)
            for part in given
            if part is not None
        ]

    def _example(self, row: dict[str, Any], all_columns: bool = False) -> Example:
        key = {name: row[name] for name in self.key if name in row}
        others = [name for name in row if name not in key and name not in _BOUNDS]
        window = _window(row)
        if isinstance(self.expectation, Rule):
            chosen = self.expectation.shown
            others = others if chosen is None else [name for name in chosen if name in row]
        elif (key or window) and not all_columns:
            named = {*self.columns.split(", ")}
            others = [name for name in others if name in named]
        return Example(_key(key), window, _pairs(row, others))


def _moments(times: pd.Series) -> npt.NDArray[Any] | None:
    """Convert times to NumPy times; return None if the values are not times."""
    if not pd.api.types.is_datetime64_any_dtype(times):
        return None
    return pd.to_datetime(times, utc=True).dt.tz_localize(None).to_numpy().astype("datetime64[ms]")


def shown(value: Any) -> str:
    """Return a value as human-readable text."""
    if value is None or value is pd.NA or value is pd.NaT:
        text = "null"
    elif hasattr(value, "isoformat"):
        text = value.isoformat(sep=" ").removesuffix("+00:00") if hasattr(value, "hour") else value.isoformat()
    elif isinstance(value, dict):
        text = _pairs(value, [*value])
    elif isinstance(value, list | tuple | set | frozenset):
        text = ", ".join(map(shown, value))
    else:
        text = str(value.item() if hasattr(value, "item") and not getattr(value, "shape", ()) else value)
        # Strings that look like a null or a missing value are quoted.
        if isinstance(value, str) and (value in ("", "null") or value.startswith('"')):
            text = json.dumps(value, ensure_ascii=False)
    return _cut(text)


def _key(row: dict[str, Any]) -> str:
    """Return a key's columns in command-line form, so that a null is not mistaken for a string."""
    plain = {name: value.item() if hasattr(value, "item") else value for name, value in row.items()}
    texts = {name: text_of_value(None if pd.isna(value) else value) for name, value in plain.items()}
    return ", ".join(f"{name} {_cut(text)}" for name, text in texts.items())


def _pairs(row: dict[str, Any], names: Sequence[str]) -> str:
    # The value that a rule computed for comparison is in a separate column.
    return ", ".join(f"{name.replace(COMPUTED, 'computed ')} {shown(row[name])}" for name in names)


def _window(row: dict[str, Any]) -> str:
    start, end = (row.get(name) for name in _BOUNDS)
    if start is None or end is None or pd.isna(start) or pd.isna(end):
        return ""
    return f"{shown(start)} to {shown(end)}"


def _parameter(name: str, value: Any) -> str:
    if name in _LENGTHS and isinstance(value, int):
        return str(timedelta(milliseconds=value))
    if name in _TIMES and isinstance(value, int):
        return show_millis(value)
    if isinstance(value, list | tuple | set | frozenset):
        return f"[{shown(value)}]"
    if name == "row_condition":
        return _cut(_condition(value))
    return _cut(value) if isinstance(value, str) else shown(value)


def _condition(given: Any) -> str:
    """Return a condition of Great Expectations as the user wrote it: as a Python expression or as a string."""
    kind = getattr(given, "type", None)
    if kind == "pass_through":
        return str(given.pass_through_filter)
    if kind in ("and", "or"):
        return f" {'&' if kind == 'and' else '|'} ".join(f"({_condition(part)})" for part in given.conditions)
    if kind == "nullity":
        return f"Column({given.column.name!r}).{'is_null' if given.is_null else 'is_not_null'}()"
    if kind == "comparison":
        column, operator = f"Column({given.column.name!r})", str(given.operator)
        method = {"IN": "is_in", "NOT_IN": "is_not_in"}.get(operator)
        return f"{column}.{method}({given.parameter!r})" if method else f"{column} {operator} {given.parameter!r}"
    return str(given)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def validation_result(
    manifest: Manifest, check_id: str, checked_at: datetime, judged: Sequence[tuple[str, Sequence[Outcome]]]
) -> bytes:
    """Return the JSON of a check.

    `great_expectations.core.expectationSuiteValidationResultSchema.loads` reads it. Rows that break an expectation are
    shown as in table `quality`: up to 20, as strings.
    """
    results = [_result(suite, outcome) for suite, outcomes in judged for outcome in outcomes]
    good, total = sum(bool(result.success) for result in results), len(results)
    result = ExpectationSuiteValidationResult(
        success=good == total,
        results=results,
        suite_name=manifest.pipeline,
        statistics={
            "evaluated_expectations": total,
            "successful_expectations": good,
            "unsuccessful_expectations": total - good,
            "success_percent": 100 * good / total if total else None,
        },
        meta={
            "great_expectations_version": gx.__version__,
            "validation_time": checked_at.isoformat(),
            "run_id": {"run_name": check_id, "run_time": checked_at.isoformat()},
            "pipeline": manifest.pipeline,
            "timeline": manifest.timeline,
            "epoch": manifest.epoch,
        },
    )
    # `forget` searches pages for the key as text, so the text must appear here unchanged.
    return json.dumps(result.to_json_dict(), ensure_ascii=False).encode()


def _result(suite: str, outcome: Outcome) -> ExpectationValidationResult:
    config = outcome.expectation.configuration
    config.meta = {**(config.meta or {}), "suite": suite}
    found: dict[str, Any] = {"element_count": outcome.rows}
    if outcome.unexpected is not None:
        found["unexpected_count"] = outcome.unexpected
        # A query may return more rows than it reads.
        found["unexpected_percent"] = min(100.0, 100 * outcome.unexpected / outcome.rows) if outcome.rows else 0.0
        found["partial_unexpected_list"] = [str(example) for example in outcome.examples]
    if outcome.number is not None or outcome.observed:
        found["observed_value"] = outcome.number if outcome.number is not None else outcome.observed
    return ExpectationValidationResult(
        success=outcome.success, expectation_config=config, result=found, meta={"description": outcome.description}
    )
