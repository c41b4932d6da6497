"""Option `--where`: a condition in Spark SQL on rows, evaluated without Spark."""

from __future__ import annotations

import pyarrow as pa

from tidegate.pipelines.definition.names import listed
from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.sources.sql.compile import as_condition, compile_expression
from tidegate.pipelines.sources.sql.program import RowFailure, as_array
from tidegate.pipelines.sources.sql.reading import Unparsed, Unproven, columns_named


def meets(rows: pa.Table, where: str) -> pa.ChunkedArray:
    """Return for each row whether it meets a condition, or null.

    Raises:
        UsageError: the condition can't be evaluated over these columns.
    """
    columns = f"the columns are {listed(rows.column_names, 30)}"
    try:
        program = as_condition(compile_expression(where, rows.schema))
        batch = rows.combine_chunks().to_batches()
        return pa.chunked_array([as_array(program.evaluate(each), each.num_rows) for each in batch], pa.bool_())
    except Unproven as error:
        raise UsageError(
            f"{_reason(where, error)}. Give a condition of Spark SQL that needs no Spark, such as "
            f"clicks > 3 AND user = 'ann', or use a query over the table; {columns}"
        ) from error
    except (RowFailure, pa.ArrowInvalid) as error:
        raise UsageError(f"--where {where!r}: {error}. Give a condition that holds for every row; {columns}") from error


def columns_in(where: str) -> list[str]:
    """Return the names of the columns in a condition, each once.

    Raises:
        UsageError: the text is no condition.
    """
    try:
        return columns_named(where)
    except Unproven as error:
        raise UsageError(f"{_reason(where, error)}. Give a condition of Spark SQL, such as \"user = 'ann'\"") from error


def _reason(where: str, error: Unproven) -> str:
    reason = "it can't be parsed" if isinstance(error, Unparsed) else str(error)
    return f"--where {where!r}: {reason}"
