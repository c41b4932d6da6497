"""Outcomes of a quality check as facets of OpenLineage, from the JSON of `tidegate quality`.

Each expectation is an assertion about the table whose rows it read. The pipeline's own suite also gives metrics: the
number of windows that became final, and the values that its expectations observed in columns.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

RESULTS, EPOCHS, STATE = "results", "epochs", "state"

_OWN_SUITE = "new final windows"
"""Prefix of the name of the rows that the pipeline's own suite checks."""
_TABLES = {"epochs": EPOCHS, "lines": EPOCHS, "ledger": EPOCHS, "state": STATE, "restored state": STATE}
"""Tables of the rows that an expectation checks; all others are rows of table results, or its files."""
_SEVERITIES = {"critical": "error", "warning": "warn"}
_METRICS = {
    "expect_column_min_to_be_between": "min",
    "expect_column_max_to_be_between": "max",
    "expect_column_sum_to_be_between": "sum",
    "expect_column_unique_value_count_to_be_between": "distinctCount",
}
"""Metrics of a column that an expectation observes."""
_NOT_NULL = "expect_column_values_to_not_be_null"


def check_facets(result: Mapping[str, Any], columns: Collection[str]) -> dict[str, dict[str, Any]]:
    """Return the input facets of each table that a check read, by its name, from the JSON of `tidegate quality`.

    The columns of table results show whether an expectation is about a column.
    """
    assertions: dict[str, list[dict[str, Any]]] = {}
    for check in result["checks"]:
        table = _TABLES.get(check["suite"], RESULTS)
        assertions.setdefault(table, []).append(_assertion(check, columns if table == RESULTS else ()))
    facets: dict[str, dict[str, Any]] = {
        table: {"dataQualityAssertions": {"assertions": each}} for table, each in assertions.items()
    }
    metrics = {"rowCount": result["windows"], "columnMetrics": _column_metrics(result["checks"], columns)}
    facets.setdefault(RESULTS, {})["dataQualityMetrics"] = metrics
    return facets


def _assertion(check: Mapping[str, Any], columns: Collection[str]) -> dict[str, Any]:
    assertion = {
        "assertion": check["expectation"],
        "success": check["success"],
        "severity": _SEVERITIES.get(check["severity"], check["severity"]),
        "name": f"{check['suite']}: {check['expectation']}",
    }
    if check["about"] in columns:
        assertion["column"] = check["about"]
    elif check["about"]:
        assertion["description"] = check["about"]
    if check["observed"]:
        assertion["actual"] = check["observed"]
    return assertion


def _column_metrics(checks: Collection[Mapping[str, Any]], columns: Collection[str]) -> dict[str, dict[str, float]]:
    metrics: dict[str, dict[str, float]] = {}
    for check in checks:
        if not check["suite"].startswith(_OWN_SUITE) or check["about"] not in columns:
            continue
        for name, value in _metric(check):
            metrics.setdefault(check["about"], {})[name] = value
    return metrics


def _metric(check: Mapping[str, Any]) -> list[tuple[str, float]]:
    if check["expectation"] == _NOT_NULL and check["failing"] is not None:
        return [("nullCount", check["failing"]), ("count", check["rows"] - check["failing"])]
    name = _METRICS.get(check["expectation"])
    if name is None:
        return []
    try:
        value = float(check["observed"])
    except ValueError:
        # It is a time or a string, but metrics are numbers.
        return []
    if not math.isfinite(value):
        # JSON has no NaN or infinity: a server would refuse the whole event.
        return []
    return [(name, int(value) if name == "distinctCount" else value)]
