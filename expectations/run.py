"""Run suites over pinned tables; results stay in a folder with Data Docs of all runs, and in table `quality`."""

from __future__ import annotations

import fcntl
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import great_expectations as gx

from expectations.pinned import Pinned
from expectations.suites import CRITICAL, WARNING, TableSuite
from pipelines.tables import quality, results, state
from pipelines.tables.pipeline_tables import PipelineTables
from pipelines.tables.quality import EXAMPLE, QualityRow

_ABOUT = ("column_list", "column", "column_A", "column_B", "key")
_LENGTHS = ("size", "slide", "offset", "length")
"""Parameters in milliseconds."""


@dataclass(frozen=True)
class QualityRun:
    """How one check of all suites went.

    Args:
        pipeline: its name.
        epoch: that was checked.
        checks: one for each expectation.
        docs: first page of the Data Docs.
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


def run_suites(suites: Sequence[TableSuite], pinned: Pinned, tables: PipelineTables, folder: Path) -> QualityRun:
    """Check pinned tables, and keep how it went.

    Args:
        suites: what must hold.
        pinned: the tables.
        tables: of the pipeline, whose table `quality` gets the results.
        folder: where results of all runs and Data Docs are kept, one for each pipeline.
    """
    folder.mkdir(parents=True, exist_ok=True)
    manifest = pinned.manifest
    now = datetime.now(UTC)
    check_id = uuid.uuid4().hex
    versions = pinned.versions[results.NAME], pinned.versions[state.NAME]
    with _alone_in(folder):
        found = _validate_all(suites, folder, gx.RunIdentifier(run_name=f"epoch {manifest.epoch}", run_time=now))
    checks = [
        QualityRow(
            check_id,
            now,
            manifest.timeline,
            manifest.epoch,
            suite.table,
            result.expectation_config.type,
            _about(result.expectation_config.kwargs),
            _severity(result),
            bool(result.success),
            _observed(result),
            len(suite.rows),
            *versions,
        )
        for suite, results_of_suite in zip(suites, found, strict=True)
        for result in results_of_suite
    ]
    quality.append(tables, checks)
    docs = folder / "gx" / "uncommitted" / "data_docs" / "local_site" / "index.html"
    return QualityRun(manifest.pipeline, manifest.epoch, tuple(checks), docs)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Wait until no other check uses a folder: Great Expectations keeps suites there that all runs overwrite."""
    with (folder / "lock").open("w") as file:
        # Given back when the file is closed, however the process ends.
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _validate_all(suites: Sequence[TableSuite], folder: Path, run_id: Any) -> list[list[Any]]:
    """The results of each suite; the folder has them and the pages that show them."""
    context = gx.get_context(mode="file", project_root_dir=str(folder))
    context.variables.progress_bars = {"globally": False}
    pages: list[Any] = []
    found = []
    for suite in suites:
        identifier, results_of_suite = _validate(context, suite, run_id)
        pages += [identifier, identifier.expectation_suite_identifier]
        found.append(results_of_suite)
    # Once for all suites, because each time the page that lists every run is made anew.
    context.build_data_docs(resource_identifiers=pages)
    return found


def _validate(context: Any, suite: TableSuite, run_id: Any) -> tuple[Any, list[Any]]:
    """The results of one suite, which the context keeps, and under which name."""
    source = context.data_sources.add_or_update_pandas(suite.table)
    batch = source.add_dataframe_asset("rows").add_batch_definition_whole_dataframe("epoch")
    kept = context.suites.add_or_update(gx.ExpectationSuite(name=suite.table, expectations=list(suite.expectations)))
    definition = context.validation_definitions.add_or_update(
        gx.ValidationDefinition(name=suite.table, data=batch, suite=kept)
    )
    checkpoint = context.checkpoints.add_or_update(
        gx.Checkpoint(
            name=suite.table,
            validation_definitions=[definition],
            result_format="SUMMARY",
        )
    )
    ((identifier, result),) = checkpoint.run(
        batch_parameters={"dataframe": suite.rows}, run_id=run_id
    ).run_results.items()
    return identifier, list(result.results)


def _about(kwargs: dict[str, Any]) -> str:
    parts = [kwargs[name] for name in _ABOUT if kwargs.get(name) is not None]
    told = [", ".join(map(str, part)) if isinstance(part, list) else str(part) for part in parts]
    lengths = {name: kwargs[name] for name in _LENGTHS if kwargs.get(name)}
    return ", ".join([*told, *(f"{name} {timedelta(milliseconds=value)}" for name, value in lengths.items())])


def _severity(result: Any) -> str:
    severity = getattr(result.expectation_config, "severity", None)
    return str(getattr(severity, "value", severity) or CRITICAL).lower()


def _observed(result: Any) -> str:
    raw = result.result or {}
    observed = raw.get("observed_value")
    if observed is None and "unexpected_count" in raw:
        observed = f"{raw['unexpected_count']} of {raw.get('element_count')} unexpected"
    examples = raw.get("partial_unexpected_list")
    if observed is not None:
        return f"{observed}{EXAMPLE}{examples[0]}" if examples and not result.success else str(observed)
    return next((error["exception_message"] for error in _exceptions(result) if error.get("exception_message")), "")


def _exceptions(result: Any) -> list[dict[str, Any]]:
    info = result.exception_info or {}
    return [info] if "exception_message" in info else [item for item in info.values() if isinstance(item, dict)]
