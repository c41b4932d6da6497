"""Run suites over pinned tables; keep the results in table `quality`, and a page for each check in the artifacts."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import great_expectations as gx
from great_expectations.data_context.types.base import DataContextConfig, InMemoryStoreBackendDefaults

from tidegate.expectations.docs import write_page
from tidegate.expectations.outcome import Outcome
from tidegate.expectations.pinned import Pinned
from tidegate.expectations.suites import CRITICAL, WARNING, TableSuite
from tidegate.pipelines.tables import quality, results, state
from tidegate.pipelines.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.tables.quality import EXAMPLE, QualityRow

if TYPE_CHECKING:
    from tidegate.pipelines.stores.artifacts import Artifacts


@dataclass(frozen=True)
class QualityRun:
    """The result of one check of all suites.

    Args:
        pipeline: name of the pipeline.
        epoch: the checked epoch.
        checks: a row for each expectation.
        docs: address of the page that lists all checks.
    """

    pipeline: str
    epoch: int
    checks: tuple[QualityRow, ...]
    docs: str

    @property
    def failed(self) -> tuple[QualityRow, ...]:
        """Return the expectations that do not hold."""
        return tuple(check for check in self.checks if not check.success)

    @property
    def is_critical(self) -> bool:
        """Return True if a critical expectation does not hold."""
        return any(check.severity == CRITICAL for check in self.failed)

    @property
    def state(self) -> str:
        """Return `failed`, `marked` if only a warning does not hold, or `passed`."""
        warned = any(check.severity == WARNING for check in self.failed)
        return "failed" if self.is_critical else "marked" if warned else "passed"


def run_suites(
    suites: Sequence[TableSuite], pinned: Pinned, tables: PipelineTables, artifacts: Artifacts
) -> QualityRun:
    """Check pinned tables, and keep the results.

    Args:
        suites: the suites to check.
        pinned: the tables.
        tables: tables of the pipeline; table `quality` gets the results.
        artifacts: the project's artifacts, which get the page.
    """
    manifest = pinned.manifest
    now = datetime.now(UTC)
    check_id = uuid.uuid4().hex
    versions = pinned.versions[results.NAME], pinned.versions[state.NAME]
    batch = any_rows()
    outcomes_by_suite = [(suite, validate(batch, suite)) for suite in suites]
    checks = [
        QualityRow(
            check_id,
            now,
            manifest.timeline,
            manifest.epoch,
            suite.table,
            outcome.expectation.type,
            outcome.about,
            outcome.severity,
            outcome.success,
            _with_example(outcome),
            outcome.rows,
            *versions,
        )
        for suite, outcomes in outcomes_by_suite
        for outcome in outcomes
    ]
    run = QualityRun(manifest.pipeline, manifest.epoch, tuple(checks), "")
    if checks and not run.is_critical:
        checks[0] = replace(checks[0], proof=pinned.proves.to_json())
    # The page is written before the table, so that a reader of the table always finds the page.
    docs = write_page(artifacts, pinned, check_id, now, run.state, outcomes_by_suite)
    quality.append(tables, checks)
    return replace(run, checks=tuple(checks), docs=docs)


def any_rows() -> Any:
    """Return a batch definition that takes any rows, in a context that stores neither suites nor pages.

    All suites use it: Great Expectations writes its configuration again with each part of a definition, which takes as
    long as a third of a check if each suite has its own.
    """
    config = DataContextConfig(
        store_backend_defaults=InMemoryStoreBackendDefaults(),
        progress_bars={"globally": False},
        analytics_enabled=False,
    )
    context = gx.get_context(mode="ephemeral", project_config=config)
    asset = context.data_sources.add_pandas("tables").add_dataframe_asset("rows")
    return asset.add_batch_definition_whole_dataframe("part")


def validate(batch: Any, suite: TableSuite) -> list[Outcome]:
    """Return the outcome of each expectation of a suite over all parts of its rows.

    Args:
        batch: a batch definition, from `any_rows`.
        suite: the suite.
    """
    outcomes: list[Outcome] = []
    for rows in suite.parts():
        # Great Expectations lets an expectation belong to one suite only, and each part needs a new suite.
        copies = [expectation.copy(deep=True) for expectation in suite.expectations]
        given = gx.ExpectationSuite(name=suite.table, expectations=copies)
        result = batch.get_batch({"dataframe": rows}).validate(given, result_format="SUMMARY")
        if not outcomes:
            outcomes = [Outcome(part.expectation_config, _severity(part)) for part in result.results]
        for outcome, part in zip(outcomes, result.results, strict=True):
            outcome.take(part, len(rows))
    return outcomes


def _severity(result: Any) -> str:
    severity = getattr(result.expectation_config, "severity", None)
    return str(getattr(severity, "value", severity) or CRITICAL).lower()


def _with_example(outcome: Outcome) -> str:
    return f"{outcome.summary}{EXAMPLE}{outcome.examples[0]}" if outcome.examples else outcome.summary
