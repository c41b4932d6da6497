"""List of expectations that a pipeline's tables break, made without Data Docs or a project."""

from __future__ import annotations

from typing import Any

import pandas as pd

from tidegate.expectations.invariants.rule import Rule
from tidegate.expectations.pinned import Pinned, pin
from tidegate.expectations.run import gx_context
from tidegate.expectations.slices import ROWS
from tidegate.expectations.suites import suites
from tidegate.pipelines import Pipeline
from tidegate.pipelines.tables.pipeline_tables import PipelineTables


def broken_in(
    tables: PipelineTables,
    pipeline: Pipeline,
    severity: str = "critical",
    rows_at_a_time: int = ROWS,
    only: str | None = None,
) -> set[tuple[str, str]]:
    """Suite and type of every expectation of a severity that does not hold of the newest epoch; of one suite only."""
    found = set()
    context = gx_context()
    for suite in suites(pin(tables, pipeline, rows_at_a_time=rows_at_a_time)):
        for rows in suite.parts() if only in (None, suite.table) else ():
            batch = context.data_sources.pandas_default.read_dataframe(rows)
            for expectation in suite.expectations:
                result = batch.validate(expectation.copy(deep=True))
                assert '"raised_exception": true' not in str(result), result.exception_info
                if not result.success and result.expectation_config.severity.value == severity:
                    found.add((suite.table, result.expectation_config.type))
    return found


def broken_by_rules(pinned: Pinned) -> set[tuple[str, str]]:
    """The critical ones, fast: each rule by itself, without Great Expectations around it."""
    return {
        (suite.table, expectation.expectation_type)
        for suite in suites(pinned)
        for rows in suite.parts()
        for expectation in suite.expectations
        if str(expectation.severity.value) == "critical" and len(rows) and _marks(expectation, rows).any()
    }


def _marks(expectation: Any, rows: pd.DataFrame) -> pd.Series:
    if isinstance(expectation, Rule):
        return expectation.broken(rows)
    match expectation.expectation_type:
        case "expect_compound_columns_to_be_unique":
            return rows.duplicated(expectation.column_list)
        case "expect_column_values_to_be_unique":
            return rows.duplicated([expectation.column])
        case "expect_column_pair_values_to_be_equal":
            return rows[expectation.column_A] != rows[expectation.column_B]
        case "expect_column_pair_values_a_to_be_greater_than_b":
            return rows[expectation.column_A] <= rows[expectation.column_B]
    raise NotImplementedError(expectation.expectation_type)
