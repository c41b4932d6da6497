"""Run a suite over pinned windows, keep the result in a folder, and build Data Docs of all runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import great_expectations as gx
from great_expectations.checkpoint import UpdateDataDocsAction

from expectations.pinned import PinnedWindows

CRITICAL, WARNING, INFO = "critical", "warning", "info"


@dataclass(frozen=True)
class Check:
    """How one expectation went."""

    expectation: str
    column: str
    severity: str
    success: bool
    observed: str


@dataclass(frozen=True)
class QualityRun:
    """How a suite went."""

    suite: str
    epoch: int
    rows: int
    checks: tuple[Check, ...]
    docs: Path

    @property
    def failed(self) -> tuple[Check, ...]:
        """What does not hold."""
        return tuple(check for check in self.checks if not check.success)

    @property
    def is_critical(self) -> bool:
        """Whether something does not hold that must."""
        return any(check.severity == CRITICAL for check in self.failed)


def run_suite(suite: gx.ExpectationSuite, pinned: PinnedWindows, folder: Path) -> QualityRun:
    """Check windows against a suite.

    Args:
        suite: what must hold.
        pinned: the windows.
        folder: where results of all runs and Data Docs are kept, one for each pipeline.
    """
    folder.mkdir(parents=True, exist_ok=True)
    context = gx.get_context(mode="file", project_root_dir=str(folder))
    context.variables.progress_bars = {"globally": False}
    source = context.data_sources.add_or_update_pandas("windows")
    batch = source.add_dataframe_asset("final").add_batch_definition_whole_dataframe("epoch")
    kept = context.suites.add_or_update(gx.ExpectationSuite(name=suite.name, expectations=list(suite.expectations)))
    definition = context.validation_definitions.add_or_update(
        gx.ValidationDefinition(name=suite.name, data=batch, suite=kept)
    )
    checkpoint = context.checkpoints.add_or_update(
        gx.Checkpoint(
            name=suite.name,
            validation_definitions=[definition],
            actions=[UpdateDataDocsAction(name="docs")],
            result_format="SUMMARY",
        )
    )
    outcome = checkpoint.run(
        batch_parameters={"dataframe": pinned.windows},
        run_id=gx.RunIdentifier(run_name=f"epoch-{pinned.manifest.epoch}-results-version-{pinned.version}"),
    )
    (result,) = outcome.run_results.values()
    return QualityRun(
        suite.name,
        pinned.manifest.epoch,
        len(pinned.windows),
        tuple(_check(item) for item in result.results),
        folder / "gx" / "uncommitted" / "data_docs" / "local_site" / "index.html",
    )


def _check(result: Any) -> Check:
    config, raw = result.expectation_config, result.result or {}
    columns = config.kwargs.get("column_list") or [
        config.kwargs[name] for name in ("column", "column_A", "column_B") if name in config.kwargs
    ]
    observed = raw.get("observed_value")
    if observed is None and "unexpected_count" in raw:
        observed = f"{raw['unexpected_count']} of {raw.get('element_count')} unexpected"
        if raw.get("partial_unexpected_list"):
            observed += f", such as {raw['partial_unexpected_list'][0]}"
    if observed is None:
        observed = next(
            (error["exception_message"] for error in _exceptions(result) if error.get("exception_message")), ""
        )
    severity = getattr(config, "severity", None)
    return Check(
        config.type,
        ", ".join(map(str, columns)),
        str(getattr(severity, "value", severity) or CRITICAL).lower(),
        bool(result.success),
        str(observed),
    )


def _exceptions(result: Any) -> list[dict[str, Any]]:
    info = result.exception_info or {}
    return [info] if "exception_message" in info else [item for item in info.values() if isinstance(item, dict)]
