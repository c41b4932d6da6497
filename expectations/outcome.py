"""The outcome of one expectation, over all parts of the checked rows.

All suites of a check form one result; the `meta` of each expectation's configuration says which suite it belongs to.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
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
from great_expectations.core.metric_domain_types import MetricDomainTypes
from great_expectations.execution_engine import PandasExecutionEngine

from tidegate.expectations.invariants.rule import Rule
from tidegate.expectations.invariants.tables import COMPUTED
from tidegate.expectations.needs import fact_of
from tidegate.expectations.neighbours import Part
from tidegate.expectations.typed import columns_of
from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.ledger.tables.keys import text_of_value
from tidegate.pipelines.ledger.tables.quality import MOST_EXAMPLES, Example
from tidegate.windowing.time import show_length, show_time

_COLUMNS = ("column_list", "column", "column_A", "column_B", "column_set", "key")
_OF_ALL = {
    *("id", "meta", "notes", "description", "severity", "rendered_content", "catch_exceptions", "result_format"),
    *(
        "needs",
        "windows",
        "batch_id",
        "condition_parser",
        "ignore_row_if",
        "is_merging",
        "by_epoch",
        "library_metadata",
    ),
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

    def take(self, result: Any, part: Part) -> None:
        """Add the result of a part."""
        raw, rows = result.result or {}, part.rows
        selected = (raw.get("details") or {}).get("unexpected_rows")
        places = raw.get("unexpected_index_list")
        if part.counts is not None and selected is not None:
            places = self._places_of(selected, rows)
        if part.counts is not None and places is not None:
            self._take_counted(np.array(places, np.int64), part, part.counts)
            return
        self.rows += len(rows)
        if "unexpected_count" in raw and "element_count" in raw:
            self.unexpected = (self.unexpected or 0) + int(raw["unexpected_count"])
        if selected is not None:
            self.unexpected = (self.unexpected or 0) + len(selected)
        elif (seen := raw.get("observed_value")) is not None and (self.success or not part.time):
            # Of several partitions, the first one that fails is shown.
            self._observe(seen, "" if result.success else part.time)
        self.success &= bool(result.success)
        if not result.success:
            self._take_failing(raw, selected, places, part)

    def _observe(self, seen: Any, failing_part: str) -> None:
        seen = seen.item() if hasattr(seen, "item") else seen
        self.observed = f"{shown(seen)} in {failing_part}" if failing_part else shown(seen)
        self.number = float(seen) if isinstance(seen, int | float) and not isinstance(seen, bool) else None

    def _take_failing(self, raw: dict[str, Any], selected: Any, places: Any, part: Part) -> None:
        """Add the rows of a failing part: those of `places`, those that a query selected, or those of a wrong total."""
        rows = part.rows
        self.checked.append(rows)
        left = MOST_EXAMPLES - len(self.examples)
        if places is not None:
            self.failing.append(rows.loc[places])
            self.examples += [self._example(row) for row in rows.loc[places[:left]].to_dict("records")]
        elif selected is not None:
            # The query selected these columns, so all of them are shown.
            self.failing.append(pd.DataFrame(selected))
            self.examples += [self._example(row, all_columns=True) for row in selected[:left]]
        else:
            # A wrong total is blamed on the new windows of its partition, or on all if none is new.
            chosen = np.ones(len(rows), np.bool_) if part.new is None or not part.new.any() else part.new
            self.failing.append(pd.DataFrame(rows[chosen]) if part.time else None)
            values = list(raw.get("partial_unexpected_list") or ()) or [raw.get("observed_value")] * bool(part.time)
            self.examples += [Example("", part.time, shown(value)) for value in values[:left]]

    def _take_counted(self, places: npt.NDArray[np.int64], part: Part, counts: npt.NDArray[np.bool_]) -> None:
        """Add the failing rows that count: those that are new or were compared with a new one."""
        rows, applies = part.rows, self._applies_to(part.rows)
        broken = places[counts[places]]
        if part.before is not None:
            # Great Expectations compares with the last row that it reads, which may belong to another window.
            broken = broken[applies[broken] & applies[part.before[broken]]]
        owners = np.unique(broken if part.owner is None else part.owner[broken])
        self.rows += part.judged
        self.unexpected = (self.unexpected or 0) + len(owners)
        checked = int((applies & part.new).sum()) if part.new is not None else int(applies.sum())
        mostly = getattr(self.expectation, "mostly", 1.0)
        if not len(owners) or 1 - len(owners) / max(checked, len(owners)) >= mostly:
            return
        self.success = False
        self.checked.append(rows)
        self.failing.append(rows.loc[owners])
        shown_places = broken[: MOST_EXAMPLES - len(self.examples)].tolist()
        others = self._compared_with(shown_places, part)
        self.examples += [
            self._example(_record(rows, place), other=None if other is None else _record(rows, other))
            for place, other in zip(shown_places, others, strict=True)
        ]

    def _compared_with(self, places: Sequence[int], part: Part) -> list[int | None]:
        """Return for each row the row before it, or a row with equal values if values must be unique."""
        if part.before is not None:
            return [int(part.before[place]) for place in places]
        if fact_of(self.expectation).reads != "identity" or not places:
            return [None] * len(places)
        names = columns_of(self.expectation)
        same = part.rows.groupby(names, dropna=False, sort=False).ngroup().to_numpy()
        equal = [np.flatnonzero(same == same[place]) for place in places]
        return [
            next((int(other) for other in few if other != place), None)
            for place, few in zip(places, equal, strict=True)
        ]

    def _applies_to(self, rows: pd.DataFrame) -> npt.NDArray[np.bool_]:
        """Mark the rows that the expectation judges: those that satisfy its condition and have a value."""
        chosen = pd.Series(True, index=rows.index)
        if isinstance(self.expectation, Rule):
            return chosen.to_numpy()
        if (condition := getattr(self.expectation, "row_condition", None)) is not None:
            domain = {"row_condition": condition, "condition_parser": self.expectation.condition_parser}
            engine = PandasExecutionEngine(batch_data_dict={"rows": rows})
            found, _, _ = engine.get_compute_domain({"batch_id": "rows", **domain}, MetricDomainTypes.TABLE)
            chosen &= rows.index.isin(found.index)
        named = [name for name in columns_of(self.expectation) if name in rows]
        if named:
            chosen &= rows[named].notna().any(axis=1)
        return chosen.to_numpy(bool)

    def _places_of(self, selected: Sequence[dict[str, Any]], rows: pd.DataFrame) -> list[int]:
        """Return the places of the windows that a query selected."""
        names = [*self.key, *(name for name in ("window_start", "event_time") if name in rows)]
        if selected and (missing := [name for name in names if name not in selected[0]]):
            raise UsageError(
                f"{self.type}: its query compares windows, so select {', '.join(missing)}, too: without them it is "
                "unknown which windows are new"
            )
        texts = zip(*(rows[name].map(shown) for name in names), strict=True)
        places: dict[tuple[str, ...], list[int]] = {}
        for place, text in enumerate(texts):
            places.setdefault(text, []).append(place)
        chosen = {tuple(shown(row[name]) for name in names) for row in selected}
        return sorted(place for text in chosen for place in places.get(text, ()))

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
        given, rule = self._given, self.expectation
        named = [name for name in rule.lengths if name != "lateness"] if isinstance(rule, Rule) else []
        lengths = (f"{name} {show_length(given[name])}" for name in named if given[name])
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
            f"{name} {self._parameter(name, value)}"
            for name, value in given.items()
            if value is not None and value is not False
        )

    @property
    def description(self) -> str | None:
        """Return the expectation's own description, or None if it has none."""
        if isinstance(self.expectation, Rule) and not self.expectation.description:
            return Template(self.expectation.text).safe_substitute(self.expectation.shown_parameters(self._given))
        return self.expectation.description or None

    def _parameter(self, name: str, value: Any) -> str:
        if isinstance(self.expectation, Rule) and (text := self.expectation.shown_time(name, value)) is not None:
            return text
        if isinstance(value, list | tuple | set | frozenset):
            return f"[{shown(value)}]"
        if name == "row_condition":
            return _cut(_condition(value))
        return _cut(value) if isinstance(value, str) else shown(value)

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

    def _example(self, row: dict[str, Any], all_columns: bool = False, other: dict[str, Any] | None = None) -> Example:
        """Return a row as an example; `other` is the row that it was compared with."""
        key = self._key_of(row)
        names = self._shown_of(row, compared=other is not None, all_columns=all_columns)
        value = _pairs(row, names)
        if other is not None:
            before = fact_of(self.expectation).needs == "neighbours"
            of_other = "" if before and self._key_of(other) == key else self._key_of(other)
            place = ", ".join(filter(None, (of_other, _window(other))))
            value = ", ".join(filter(None, (value, f"{'after' if before else 'as'} {place}")))
            value = f"{value}: {_pairs(other, names)}" if names and before else value
        return Example(key, _window(row), value)

    def _key_of(self, row: dict[str, Any]) -> str:
        return _key({name: row[name] for name in self.key if name in row})

    def _shown_of(self, row: dict[str, Any], compared: bool, all_columns: bool) -> list[str]:
        """Return the columns that an example shows beside its key and window."""
        others = [name for name in row if name not in self.key and name not in _BOUNDS]
        named = {*self.columns.split(", ")}
        if isinstance(self.expectation, Rule):
            if self.expectation.shown is not None:
                return [name for name in self.expectation.shown if name in row]
            is_narrow = compared
        else:
            is_narrow = not all_columns and bool(_window(row) or any(name in row for name in self.key))
        return [name for name in others if name in named] if is_narrow else others


def _record(rows: pd.DataFrame, place: int) -> dict[str, Any]:
    (row,) = rows.iloc[[place]].to_dict("records")
    return {str(name): value for name, value in row.items()}


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
        text = show_time(value) if isinstance(value, datetime) else value.isoformat()
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
