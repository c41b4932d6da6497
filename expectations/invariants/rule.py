"""A rule over the rows of a table: an expectation that holds when no row breaks it.

`UnexpectedRowsExpectation` does this in SQL and has no pandas form; the pinned rows are in memory, so a rule here is a
vectorised condition on a data frame.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import pandas as pd
from great_expectations.core.metric_domain_types import MetricDomainTypes
from great_expectations.execution_engine import PandasExecutionEngine
from great_expectations.expectations.expectation import BatchExpectation, render_suite_parameter_string
from great_expectations.expectations.metrics.metric_provider import metric_value
from great_expectations.expectations.metrics.table_metric_provider import TableMetricProvider
from great_expectations.render import LegacyRendererType, RenderedStringTemplateContent
from great_expectations.render.renderer.renderer import renderer

from tidegate.expectations.needs import Needs
from tidegate.windowing.time import show_length, show_millis


class RowsMetric(TableMetricProvider):
    """A metric that returns the rows themselves, for rules that compare several rows."""

    metric_name = "tidegate.rows"

    @metric_value(engine=PandasExecutionEngine)
    def _pandas(
        cls,  # noqa: N805 (the decorator makes it a class method)
        execution_engine: Any,
        metric_domain_kwargs: dict[str, Any],
        metric_value_kwargs: dict[str, Any],
        metrics: dict[str, Any],
        runtime_configuration: dict[str, Any],
    ) -> pd.DataFrame:
        rows: pd.DataFrame
        rows, _, _ = execution_engine.get_compute_domain(metric_domain_kwargs, MetricDomainTypes.TABLE)
        return rows


class Rule(BatchExpectation):
    """A rule. It holds if `broken` marks no row. A subclass provides parameters, a description and a condition."""

    metric_dependencies: ClassVar[tuple[str, ...]] = (RowsMetric.metric_name,)
    text: ClassVar[str] = ""
    """Description of the rule, with parameters as `$name`."""
    needs: ClassVar[Needs] = "nothing"
    """What it needs in addition to the new windows: `nothing`, `neighbours`, `partition` or `standing`."""
    shown: ClassVar[tuple[str, ...] | None] = None
    """Columns that an example shows in addition to key and window; None shows all columns."""
    lengths: ClassVar[tuple[str, ...]] = ()
    """Parameters that are durations in milliseconds; descriptions show them with a unit, such as `90 min`."""
    times: ClassVar[tuple[str, ...]] = ()
    """Parameters that are int64 epoch milliseconds; descriptions show them in ISO 8601."""
    success_keys: ClassVar[tuple[str, ...]] = ()
    """Parameters that decide success: those that the rule and its bases declare."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "success_keys" not in vars(cls):
            parameters = (name for name, kind in cls.__annotations__.items() if "ClassVar" not in str(kind))
            cls.success_keys = (*cls.success_keys, *parameters)

    @abstractmethod
    def broken(self, rows: pd.DataFrame) -> pd.Series:
        """Return a boolean for each row, with the index of `rows`: whether it breaks the rule.

        If `needs` is `neighbours`, `rows` has the windows of each key without gaps in between, ordered by key and
        start. True marks a window that does not agree with the one before it.
        """

    @classmethod
    def shown_time(cls, name: str, value: object) -> str | None:
        """Return a parameter as text if it is a duration or a time, otherwise None."""
        if not isinstance(value, int):
            return None
        return show_length(value) if name in cls.lengths else show_millis(value) if name in cls.times else None

    @classmethod
    def shown_parameters(cls, given: Mapping[str, Any]) -> dict[str, str]:
        """Return the parameters as text, for the places in `text`. An empty key stands for the whole table."""
        return {name: cls.shown_time(name, value) or _listed(value) for name, value in given.items()}

    @classmethod
    @renderer(renderer_type=LegacyRendererType.PRESCRIPTIVE)
    @render_suite_parameter_string
    def _prescriptive_renderer(
        cls, configuration: Any = None, result: Any = None, runtime_configuration: Any = None, **kwargs: Any
    ) -> list[Any]:
        # The configuration omits parameters that have their default.
        defaults = {name: field.default for name, field in cls.__fields__.items()}
        template = {"template": cls.text, "params": cls.shown_parameters({**defaults, **configuration.kwargs})}
        styling = (runtime_configuration or {}).get("styling")
        return [
            RenderedStringTemplateContent(
                content_block_type="string_template", string_template={**template, "styling": styling or {}}
            )
        ]

    def _validate(
        self, metrics: dict[str, Any], runtime_configuration: Any = None, execution_engine: Any = None
    ) -> dict[str, Any]:
        rows: pd.DataFrame = metrics[RowsMetric.metric_name]
        broken = rows.index[self.broken(rows).to_numpy(dtype=bool)].tolist() if len(rows) else []
        return {
            "success": not broken,
            "result": {
                "element_count": len(rows),
                "unexpected_count": len(broken),
                "unexpected_percent": 100 * len(broken) / len(rows) if len(rows) else 0.0,
                "missing_count": 0,
                "missing_percent": 0.0,
                "unexpected_index_list": broken,
            },
        }


def _listed(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "table"
    return str(value)


def milliseconds(times: pd.Series) -> pd.Series:
    """Return timestamps as int64 epoch milliseconds; the caller excludes rows without a timestamp."""
    return times.astype("datetime64[us, UTC]").astype("int64") // 1000
