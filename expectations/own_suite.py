"""The suite of a pipeline: what is wrong with the suite itself is found before any row is judged.

An expectation that can't be evaluated says nothing about the data, so it is an error of the suite and no failed check.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, Final

import pandas as pd
from great_expectations.exceptions import MetricProviderError
from great_expectations.execution_engine import PandasExecutionEngine
from great_expectations.expectations.registry import get_metric_provider

from tidegate.expectations import unexpected_rows
from tidegate.expectations.suites import CRITICAL
from tidegate.pipelines.errors import UsageError

assert unexpected_rows.PROVIDERS, "the import registers them"

_OF_ONE: Final = ("column", "column_A", "column_B")
_MAY_LACK: Final = "expect_column_to_exist"


def check_suite(suite: Any, name: str, rows: pd.DataFrame) -> None:
    """Check that every expectation of a pipeline's own suite can be evaluated.

    Args:
        suite: the ExpectationSuite.
        name: where tidegate.toml names it; messages begin with it.
        rows: no rows, with the columns of final windows.

    Raises:
        UsageError: it is no suite, or one of its expectations lacks a parameter, names a column that is not there, or
            can't be evaluated on rows in memory.
    """
    if not hasattr(suite, "expectations"):
        raise UsageError(f"{name}: it is a {type(suite).__name__}, not an ExpectationSuite")
    for expectation in suite.expectations:
        if fault := next(_faults(expectation, rows), None):
            raise UsageError(f"{name}: {expectation.expectation_type} (severity {_severity(expectation)}): {fault}")


def _faults(expectation: Any, rows: pd.DataFrame) -> Iterator[str]:
    columns = list(rows.columns)
    given = {name: getattr(expectation, name) for name in expectation.__fields__}
    for name, value in given.items():
        if name not in ("meta", "rendered_content") and "$PARAMETER" in json.dumps(value, default=str):
            yield f"{name} = {value!r} is a parameter, and a check has none to give: write the value into the suite"
    if expectation.expectation_type != _MAY_LACK:
        listed = given.get("column_list")
        named = [given.get(name) for name in _OF_ONE] + (list(listed) if isinstance(listed, list | tuple) else [])
        for column in named:
            if isinstance(column, str) and column not in columns:
                close = get_close_matches(column, columns, 1)
                hint = f"Did you mean {close[0]!r}?" if close else f"There are {', '.join(columns)}"
                yield f"final windows have no column {column!r}. {hint}"
    engine = PandasExecutionEngine(batch_data_dict={"rows": rows})
    for metric in expectation.get_validation_dependencies(execution_engine=engine).metric_configurations.values():
        try:
            get_metric_provider(metric.metric_name, engine)
        except MetricProviderError:
            yield (
                f"it can't be evaluated on rows in memory, because metric {metric.metric_name} has no form for pandas. "
                "Write the condition as SQL in an UnexpectedRowsExpectation, or as an expectation on columns"
            )


def _severity(expectation: Any) -> str:
    severity = expectation.severity
    return str(getattr(severity, "value", severity) or CRITICAL)
