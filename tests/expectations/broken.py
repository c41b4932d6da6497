"""Find the expectations that a pipeline's tables break, without Data Docs or a project."""

from __future__ import annotations

from typing import Any

import pandas as pd

from tidegate.expectations.invariants.rule import Rule
from tidegate.expectations.pinned import Pinned, pin
from tidegate.expectations.run import any_rows, validate
from tidegate.expectations.suites import suites
from tidegate.expectations.tables_read import ROWS
from tidegate.pipelines import Pipeline
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables


def broken_in(
    tables: PipelineTables, pipeline: Pipeline, severity: str = "critical", rows_at_a_time: int = ROWS
) -> set[tuple[str, str]]:
    """Return suite and type of every failing expectation of a severity at the newest epoch: `broken_by_rules`."""
    return broken_by_rules(pin(tables, pipeline, rows_at_a_time=rows_at_a_time), severity)


def failed_in_check(pinned: Pinned, severity: str = "critical", only: str | None = None) -> set[tuple[str, str]]:
    """The same result from Great Expectations, as the product's check computes it, or of one suite only. It takes three
    times as long. test_invariants.py checks that both are equal.
    """
    batch, found = any_rows(), set()
    for suite in suites(pinned):
        for outcome in validate(batch, suite, pinned.key) if only in (None, suite.table) else ():
            if not outcome.success and outcome.severity == severity:
                assert outcome.unexpected is not None, f"it raised: {outcome.observed}"
                found.add((suite.table, outcome.type))
    return found


def broken_by_rules(pinned: Pinned, severity: str = "critical", only: str | None = None) -> set[tuple[str, str]]:
    """Return suite and type of every failing expectation: each rule is evaluated on its own, without a check around
    it.
    """
    return {
        (suite.table, expectation.expectation_type)
        for suite in suites(pinned)
        if only in (None, suite.table)
        for rows in suite.frames()
        for expectation in suite.expectations
        if str(expectation.severity.value) == severity and len(rows) and _marks(expectation, rows).any()
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
