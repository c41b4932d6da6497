"""Run suites over pinned tables; results stay in table `quality`, and a page of each check in a folder."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import great_expectations as gx
from great_expectations.data_context.types.base import DataContextConfig, InMemoryStoreBackendDefaults

from tidegate.expectations.docs import write_page
from tidegate.expectations.pinned import Pinned
from tidegate.expectations.suites import CRITICAL, WARNING, TableSuite
from tidegate.pipelines.tables import quality, results, state
from tidegate.pipelines.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.tables.quality import EXAMPLE, QualityRow

_ABOUT = ("column_list", "column", "column_A", "column_B", "key")
_LENGTHS = ("size", "slide", "offset", "length")
"""Parameters in milliseconds."""

_EXAMPLES = 5


@dataclass(frozen=True)
class QualityRun:
    """How one check of all suites went.

    Args:
        pipeline: its name.
        epoch: that was checked.
        checks: one for each expectation.
        docs: the page that lists all checks.
    """

    pipeline: str
    epoch: int
    checks: tuple[QualityRow, ...]
    docs: Path

    @property
    def failed(self) -> tuple[QualityRow, ...]:
        """What does not hold."""
        return tuple(check for check in self.checks if not check.success)

    @property
    def is_critical(self) -> bool:
        """Whether something does not hold that must."""
        return any(check.severity == CRITICAL for check in self.failed)

    @property
    def state(self) -> str:
        """`failed`, `marked` where only a warning does not hold, or `passed`."""
        warned = any(check.severity == WARNING for check in self.failed)
        return "failed" if self.is_critical else "marked" if warned else "passed"


@dataclass
class Outcome:
    """How an expectation went, over all parts of its rows.

    Args:
        expectation: as Great Expectations configures it.
        severity: critical, warning or info.
        success: whether it holds.
        rows: that were looked at.
        unexpected: how many rows break it; None where it is not about single rows.
        observed: what was seen of rows in one part.
        examples: some of the rows that break it.
    """

    expectation: Any
    severity: str
    success: bool = True
    rows: int = 0
    unexpected: int | None = None
    observed: str = ""
    examples: list[Any] = field(default_factory=list)

    def take(self, result: Any, rows: int) -> None:
        """Add the result of a part."""
        raw = result.result or {}
        self.success &= bool(result.success)
        self.rows += rows
        if "unexpected_count" in raw:
            self.unexpected = (self.unexpected or 0) + int(raw["unexpected_count"])
        if raw.get("observed_value") is not None:
            self.observed = str(raw["observed_value"])
        self.observed = self.observed or next(
            (error["exception_message"] for error in _exceptions(result) if error.get("exception_message")), ""
        )
        left = _EXAMPLES - len(self.examples)
        self.examples += list(raw.get("partial_unexpected_list") or ())[:left] if not result.success else []

    @property
    def told(self) -> str:
        """What was seen, in words."""
        if self.unexpected is None:
            return self.observed
        return f"{self.unexpected} of {self.rows} rows break it"

    @property
    def about(self) -> str:
        """The columns or limits that it was given."""
        return _about(self.expectation.kwargs)


def run_suites(suites: Sequence[TableSuite], pinned: Pinned, tables: PipelineTables, folder: Path) -> QualityRun:
    """Check pinned tables, and keep how it went.

    Args:
        suites: what must hold.
        pinned: the tables.
        tables: of the pipeline, whose table `quality` gets the results.
        folder: where the pages of all checks are kept, one for each pipeline.
    """
    folder.mkdir(parents=True, exist_ok=True)
    manifest = pinned.manifest
    now = datetime.now(UTC)
    check_id = uuid.uuid4().hex
    versions = pinned.versions[results.NAME], pinned.versions[state.NAME]
    context = gx_context()
    found = [(suite, _validate(context, suite)) for suite in suites]
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
        for suite, outcomes in found
        for outcome in outcomes
    ]
    run = QualityRun(manifest.pipeline, manifest.epoch, tuple(checks), folder)
    if checks and not run.is_critical:
        checks[0] = replace(checks[0], proof=pinned.proves.to_json())
    # Before the table: who reads there that a check failed finds its page.
    docs = write_page(folder, pinned, check_id, now, run.state, found)
    quality.append(tables, checks)
    return replace(run, checks=tuple(checks), docs=docs)


def gx_context() -> Any:
    """A context of Great Expectations that keeps nothing: neither suites nor pages."""
    config = DataContextConfig(
        store_backend_defaults=InMemoryStoreBackendDefaults(),
        progress_bars={"globally": False},
        analytics_enabled=False,
    )
    return gx.get_context(mode="ephemeral", project_config=config)


def _validate(context: Any, suite: TableSuite) -> list[Outcome]:
    """How each expectation of a suite went over its parts."""
    asset = context.data_sources.add_pandas(suite.table).add_dataframe_asset("rows")
    batch = asset.add_batch_definition_whole_dataframe("part")
    outcomes: list[Outcome] = []
    for rows in suite.parts():
        # An expectation belongs to one suite, and each part has one of its own.
        copies = [expectation.copy(deep=True) for expectation in suite.expectations]
        given = gx.ExpectationSuite(name=suite.table, expectations=copies)
        result = batch.get_batch({"dataframe": rows}).validate(given, result_format="SUMMARY")
        if not outcomes:
            outcomes = [Outcome(one.expectation_config, _severity(one)) for one in result.results]
        for outcome, one in zip(outcomes, result.results, strict=True):
            outcome.take(one, len(rows))
    return outcomes


def _about(kwargs: dict[str, Any]) -> str:
    parts = [kwargs[name] for name in _ABOUT if kwargs.get(name) is not None]
    told = [", ".join(map(str, part)) if isinstance(part, list) else str(part) for part in parts]
    lengths = {name: kwargs[name] for name in _LENGTHS if kwargs.get(name)}
    return ", ".join([*told, *(f"{name} {timedelta(milliseconds=value)}" for name, value in lengths.items())])


def _severity(result: Any) -> str:
    severity = getattr(result.expectation_config, "severity", None)
    return str(getattr(severity, "value", severity) or CRITICAL).lower()


def _with_example(outcome: Outcome) -> str:
    return f"{outcome.told}{EXAMPLE}{outcome.examples[0]}" if outcome.examples else outcome.told


def _exceptions(result: Any) -> list[dict[str, Any]]:
    info = result.exception_info or {}
    return [info] if "exception_message" in info else [item for item in info.values() if isinstance(item, dict)]
