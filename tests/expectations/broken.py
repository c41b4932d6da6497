"""Which expectations do not hold of a pipeline's tables, told without Data Docs or a project."""

from __future__ import annotations

from expectations.pinned import pin
from expectations.run import gx_context
from expectations.slices import ROWS
from expectations.suites import suites
from pipelines import Pipeline
from pipelines.tables.pipeline_tables import PipelineTables


def broken_in(tables: PipelineTables, pipeline: Pipeline, severity: str = "critical", rows_at_a_time: int = ROWS) -> set[tuple[str, str]]:
    """Suite and type of every expectation of a severity that does not hold of the newest epoch."""
    found = set()
    context = gx_context()
    for suite in suites(pin(tables, pipeline, rows_at_a_time=rows_at_a_time)):
        for rows in suite.parts():
            batch = context.data_sources.pandas_default.read_dataframe(rows)
            for expectation in suite.expectations:
                result = batch.validate(expectation.copy(deep=True))
                assert '"raised_exception": true' not in str(result), result.exception_info
                if not result.success and result.expectation_config.severity.value == severity:
                    found.add((suite.table, result.expectation_config.type))
    return found
