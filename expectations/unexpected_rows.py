"""`UnexpectedRowsExpectation` on rows in memory: its SQL runs in DataFusion, which the library deltalake includes.

Great Expectations supports it only for databases and Spark. The rows are written to a small Delta table in the system's
folder for temporary files, because that is what this DataFusion can read.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Hashable
from typing import Any, Final

import pandas as pd
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from great_expectations.core.metric_domain_types import MetricDomainTypes
from great_expectations.execution_engine import PandasExecutionEngine
from great_expectations.expectations.metrics.metric_provider import metric_value
from great_expectations.expectations.metrics.query_metric_provider import QueryMetricProvider
from great_expectations.expectations.metrics.table_metric_provider import TableMetricProvider
from great_expectations.validator.metric_configuration import MetricConfiguration

from tidegate.pipelines.errors import UsageError

_BATCH: Final = "batch"
"""Name of the table that `{batch}` stands for."""


def select(query: str, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that a query selects; `{batch}` in it stands for the given rows.

    The query is put into parentheses, where SQL allows no statements that write, such as COPY or CREATE.
    """
    table = pa.Table.from_pandas(rows, preserve_index=False)
    # Delta has no type for columns in which every value is null.
    fields = [pa.field(each.name, pa.string()) if pa.types.is_null(each.type) else each for each in table.schema]
    with tempfile.TemporaryDirectory() as folder:
        write_deltalake(folder, table.cast(pa.schema(fields)))
        engine = QueryBuilder().register(_BATCH, DeltaTable(folder))
        # The final line break ends a comment at the end of the query.
        read_only = f"SELECT * FROM (\n{query.format(batch=_BATCH).rstrip().removesuffix(';')}\n)"
        answer = pa.table(engine.execute(read_only).read_all())
    # DataFusion returns its own text types, which pandas does not support within lists.
    plain = pa.schema([each.with_type(_without_views(each.type)) for each in answer.schema])
    selected: pd.DataFrame = answer.cast(plain).to_pandas(date_as_object=False)
    return selected


def first_word(query: str) -> str:
    """Return the first word of a query in lower case, or its first symbol; comments are ignored."""
    bare = re.sub(r"--[^\n]*|/\*.*?\*/", " ", query, flags=re.DOTALL)
    found = re.match(r"\s*(\w+|\S|$)", bare)
    return found[1].lower() if found else ""


def _without_views(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_without_views(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(_without_views(each.type)) for each in kind])
    if pa.types.is_map(kind):
        return pa.map_(_without_views(kind.key_type), _without_views(kind.item_type))
    return kind


_PLACE: Final = "tidegate:place"


def matches(where: str, rows: pd.DataFrame) -> pd.Series:
    """Mark the rows for which an SQL condition is true."""
    placed = rows.assign(**{_PLACE: range(len(rows))})
    condition = where.replace("{", "{{").replace("}", "}}")
    try:
        places = select(f'SELECT "{_PLACE}" FROM {{batch}} WHERE ({condition})', placed)[_PLACE]
    except Exception as error:
        raise UsageError(f"the condition {where!r} can't be evaluated on the final windows: {error}") from error
    return pd.Series(placed[_PLACE].isin(places).to_numpy(bool), index=rows.index)


class _Rows(TableMetricProvider):
    metric_name = "unexpected_rows_query.table"
    domain_keys = QueryMetricProvider.domain_keys
    value_keys = ("unexpected_rows_query",)

    @metric_value(engine=PandasExecutionEngine)
    def _pandas(
        cls,  # noqa: N805 (the decorator makes it a class method)
        execution_engine: Any,
        metric_domain_kwargs: dict[str, Any],
        metric_value_kwargs: dict[str, Any],
        metrics: dict[str, Any],
        runtime_configuration: dict[str, Any],
    ) -> list[dict[Hashable, Any]]:
        rows, _, _ = execution_engine.get_compute_domain(metric_domain_kwargs, MetricDomainTypes.TABLE)
        return select(metric_value_kwargs["unexpected_rows_query"], rows).to_dict("records")


class _RowCount(TableMetricProvider):
    metric_name = "unexpected_rows_query.row_count"
    domain_keys = _Rows.domain_keys
    value_keys = _Rows.value_keys

    @metric_value(engine=PandasExecutionEngine)
    def _pandas(
        cls,  # noqa: N805 (the decorator makes it a class method)
        metrics: dict[str, Any],
        **ignored: Any,
    ) -> int:
        return len(metrics[_Rows.metric_name])

    @classmethod
    def _get_evaluation_dependencies(
        cls, metric: MetricConfiguration, **ignored: Any
    ) -> dict[str, MetricConfiguration]:
        """Return the metric of the rows, so that the query runs once."""
        rows = MetricConfiguration(_Rows.metric_name, metric.metric_domain_kwargs, metric.metric_value_kwargs)
        return {_Rows.metric_name: rows}


PROVIDERS: Final = (_Rows, _RowCount)
