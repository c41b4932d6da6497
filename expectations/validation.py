"""The result of a check as an `ExpectationSuiteValidationResult`, Great Expectations' own JSON, for its tools.

All suites of a check form one result; the `meta` of each expectation's configuration says which suite it belongs to.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import great_expectations as gx
from great_expectations.core.expectation_validation_result import (
    ExpectationSuiteValidationResult,
    ExpectationValidationResult,
)

from tidegate.expectations.outcome import Outcome
from tidegate.pipelines.ledger.manifest import Manifest


def validation_result(
    manifest: Manifest, check_id: str, checked_at: datetime, judged: Sequence[tuple[str, Sequence[Outcome]]]
) -> bytes:
    """Return the JSON of a check.

    `great_expectations.core.expectationSuiteValidationResultSchema.loads` reads it. Rows that break an expectation are
    shown as in table `quality`: up to 20, as texts.

    Args:
        manifest: manifest of the checked epoch.
        check_id: id of the check in table `quality`.
        checked_at: time of the check.
        judged: by suite, the outcome of each expectation.
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
    # An erasure finds the page of a key by the key's text, which must be here unchanged.
    return json.dumps(result.to_json_dict(), ensure_ascii=False).encode()


def _result(suite: str, outcome: Outcome) -> ExpectationValidationResult:
    config = outcome.expectation.configuration
    config.meta = {**(config.meta or {}), "suite": suite}
    found: dict[str, Any] = {"element_count": outcome.rows}
    if outcome.unexpected is not None:
        found["unexpected_count"] = outcome.unexpected
        # A query may select more rows than there are.
        found["unexpected_percent"] = min(100.0, 100 * outcome.unexpected / outcome.rows) if outcome.rows else 0.0
        found["partial_unexpected_list"] = [str(example) for example in outcome.examples]
    if outcome.number is not None or outcome.observed:
        found["observed_value"] = outcome.number if outcome.number is not None else outcome.observed
    return ExpectationValidationResult(
        success=outcome.success, expectation_config=config, result=found, meta={"description": outcome.description}
    )
