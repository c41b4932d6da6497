"""Run suites over pinned tables. Results go to table `quality`, and a page for each check goes to the artifacts."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import great_expectations as gx
import numpy as np
import numpy.typing as npt
import pandas as pd
from great_expectations.data_context.types.base import DataContextConfig, InMemoryStoreBackendDefaults

from tidegate.expectations.docs import remove_page, write_page, write_result
from tidegate.expectations.needs import fact_of
from tidegate.expectations.outcome import Outcome, validation_result
from tidegate.expectations.pinned import Pinned
from tidegate.expectations.suites import CRITICAL, WARNING, TableSuite
from tidegate.pipelines.definition import epochs, results, state
from tidegate.pipelines.errors import Refused, TidegateError, UsageError
from tidegate.pipelines.ledger.snapshots.published import is_forgotten_since
from tidegate.pipelines.ledger.tables import quality
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.ledger.tables.quality import MOST_EXAMPLES, QualityRow

if TYPE_CHECKING:
    from tidegate.pipelines.storage.artifacts import Artifacts

_EVERY_ROW: Final = {"result_format": "COMPLETE", "partial_unexpected_count": MOST_EXAMPLES}
"""Asks Great Expectations for the index of every row that breaks an expectation."""
_PLACE: Final = "place"


@dataclass(frozen=True)
class QualityRun:
    """The result of one check of all suites.

    Args:
        pipeline: name of the pipeline.
        epoch: the checked epoch.
        checks: a row for each expectation.
        docs: address of the page that lists all checks.
        validation_result: address of the same result in Great Expectations' JSON format.
        failing: starts of the windows that fail critical expectations, as numpy's times; None if a rule of tidegate or
            an expectation that does not name windows fails.
    """

    pipeline: str
    epoch: int
    checks: tuple[QualityRow, ...]
    docs: str
    validation_result: str = ""
    failing: npt.NDArray[Any] | None = None

    @property
    def failed(self) -> tuple[QualityRow, ...]:
        """Return the failed expectations."""
        return tuple(check for check in self.checks if not check.success)

    @property
    def is_critical(self) -> bool:
        """Return True if a critical expectation failed."""
        return any(check.severity == CRITICAL for check in self.failed)

    @property
    def names_windows(self) -> bool:
        """Return True if each critical failure names the failing windows."""
        return self.failing is not None

    @property
    def failures(self) -> str:
        """Return the critical failures as one line."""
        return "; ".join(check.message for check in self.failed if check.severity == CRITICAL)

    @property
    def state(self) -> str:
        """Return `failed` if a critical expectation failed, `marked` if only a warning failed, or `passed`."""
        warned = any(check.severity == WARNING for check in self.failed)
        return "failed" if self.is_critical else "marked" if warned else "passed"


def run_suites(
    suites: Sequence[TableSuite], pinned: Pinned, tables: PipelineTables, artifacts: Artifacts
) -> QualityRun:
    """Check pinned tables, and store the results. They go to table `quality`, and the page to the artifacts.

    Raises:
        Refused: the outcome may contain a key that was forgotten during the check.
    """
    manifest = pinned.manifest
    now = datetime.now(UTC)
    batch = any_rows()
    check_id = uuid.uuid4().hex
    of_check = {
        "check_id": check_id,
        "checked_at": now,
        "timeline": manifest.timeline,
        "epoch": manifest.epoch,
        "results_version": pinned.versions[results.NAME],
        "state_version": pinned.versions[state.NAME],
    }
    checks, failing, judged = list[QualityRow](), list[npt.NDArray[Any] | None](), list[tuple[str, list[Outcome]]]()
    for suite in suites:
        outcomes = validate(batch, suite, pinned.key)
        judged.append((suite.table, outcomes))
        checks += _rows(suite.table, outcomes, of_check)
        broken = [outcome for outcome in outcomes if not outcome.success and outcome.severity == CRITICAL]
        failing += [outcome.times(pinned.time_column) if suite.of_windows else None for outcome in broken]
    times = [each for each in failing if each is not None]
    run = QualityRun(
        manifest.pipeline,
        manifest.epoch,
        tuple(checks),
        "",
        failing=None if len(times) < len(failing) else np.concatenate([np.empty(0, "datetime64[ms]"), *times]),
    )
    if checks and not run.is_critical:
        checks[0] = replace(checks[0], proof=pinned.proves.to_json())
    # The page is written before the table, so that readers of the table always find the page.
    docs = write_page(artifacts, pinned, check_id, now, run.state, checks)
    result = write_result(artifacts, manifest, check_id, validation_result(manifest, check_id, now, judged))

    def refuse_if_forgotten() -> None:
        if is_forgotten_since(tables.warehouse, tables.newest(epochs.NAME), manifest.epoch):
            remove_page(artifacts, manifest, check_id)
            raise Refused(
                f"a key of {manifest.pipeline} was forgotten during this check of epoch {manifest.epoch}, and its "
                "outcome may name the key, so it was discarded. Check again"
            )

    quality.append(tables, checks, refuse_if_forgotten)
    return replace(run, checks=tuple(checks), docs=docs, validation_result=result)


def _rows(table: str, outcomes: Sequence[Outcome], of_check: Mapping[str, Any]) -> Iterator[QualityRow]:
    """Yield the rows of table `quality` for the outcomes of a suite; `of_check` has the columns of every row."""
    used: Counter[str] = Counter()
    for outcome in outcomes:
        name = f"{outcome.type}:{outcome.columns}" if outcome.columns else outcome.type
        used[name] += 1
        yield QualityRow(
            **of_check,
            suite=table,
            expectation=outcome.type,
            about=outcome.about,
            severity=outcome.severity,
            success=outcome.success,
            observed=outcome.summary,
            rows=outcome.rows,
            # Limits may change, so they are not part of the id and have a column of their own.
            expectation_id=outcome.expectation.id or (name if used[name] == 1 else f"{name}#{used[name]}"),
            columns=outcome.columns,
            limits=outcome.limits,
            description=outcome.description,
            failing=outcome.unexpected,
            observed_number=outcome.number,
            examples=tuple(outcome.examples) or None,
        )


def any_rows() -> Any:
    """Return a batch definition for any rows, in a context that stores neither suites nor pages.

    All suites share it: Great Expectations rewrites its configuration with each part of a definition, which would take
    a third of a check if each suite had its own.
    """
    config = DataContextConfig(
        store_backend_defaults=InMemoryStoreBackendDefaults(),
        progress_bars={"globally": False},
        analytics_enabled=False,
    )
    context = gx.get_context(mode="ephemeral", project_config=config)
    asset = context.data_sources.add_pandas("tables").add_dataframe_asset("rows")
    return asset.add_batch_definition_whole_dataframe("part")


def validate(batch: Any, suite: TableSuite, key: Sequence[str]) -> list[Outcome]:
    """Return the outcome of each expectation of a suite over all parts of its rows, in the suite's order.

    Raises:
        UsageError: an expectation of the pipeline's own suite raised an exception, which says nothing about the rows.
        TidegateError: an expectation of tidegate raised an exception.
    """
    outcomes = [Outcome(expectation, key) for expectation in suite.expectations]
    judged = set[int]()
    for places, parts in suite.batches():
        for part in parts:
            judged |= {*places}
            for place, result in _evaluated(batch, suite, places, part.rows):
                outcome = outcomes[place]
                if (error := _exception(result)) is not None:
                    of = f" of {outcome.columns}" if outcome.columns else ""
                    broken = UsageError if suite.is_own else TidegateError
                    raise broken(f"{suite.table}: {outcome.type}{of} can't be evaluated: {error}")
                outcome.take(result, part)
    for place, outcome in enumerate(outcomes):
        if place not in judged and fact_of(outcome.expectation).needs == "partition":
            outcome.observed = suite.waits
    return [outcome for place, outcome in enumerate(outcomes) if place in judged or outcome.observed]


def _evaluated(batch: Any, suite: TableSuite, places: Sequence[int], rows: pd.DataFrame) -> Iterator[tuple[int, Any]]:
    """Yield place and result of some of a suite's expectations."""
    # An expectation can belong to only one suite in Great Expectations, and each part needs a new suite.
    copies = [suite.fitted(suite.expectations[place]).copy(deep=True) for place in places]
    for place, copy in zip(places, copies, strict=True):
        # The results come in a different order.
        copy.meta = {_PLACE: place}
    given = gx.ExpectationSuite(name=suite.table, expectations=copies)
    for result in batch.get_batch({"dataframe": rows}).validate(given, result_format=_EVERY_ROW).results:
        yield result.expectation_config.meta[_PLACE], result


def _exception(result: Any) -> str | None:
    info = result.exception_info or {}
    raised = [info] if "exception_message" in info else [each for each in info.values() if isinstance(each, dict)]
    messages = (str(each.get("exception_message") or "it raised an exception") for each in raised)
    return next((text for text, each in zip(messages, raised, strict=True) if each.get("raised_exception")), None)
