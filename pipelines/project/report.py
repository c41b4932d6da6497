"""The run report: one HTML page that shows how a run went."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from tidegate.extras import require
from tidegate.pipelines.config import Config
from tidegate.pipelines.report.answer import Answer


@dataclass(frozen=True, slots=True)
class Report(Answer):
    """A page that was written.

    Args:
        pipeline: name of the pipeline.
        file: path or URI of the page.
    """

    pipeline: str
    file: str

    says: ClassVar[str] = "report of {pipeline}: {file}"


def report(config: Config, pipeline: str, epoch: int | None, key: str | None, to: Path | None) -> Report:
    """Write the page of an epoch's run."""
    config.entry(pipeline)
    require("the run report", "jinja2", "matplotlib")
    from tidegate.pipelines.report.page import write_report

    return Report(pipeline, write_report(config, pipeline, epoch, key, to))
