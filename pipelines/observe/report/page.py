"""The HTML page of a run report: a template filled with the run's numbers and plots, in one file."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.definition.config.opened import artifacts_of
from tidegate.pipelines.definition.counters import COUNTERS
from tidegate.pipelines.definition.epochs import has_ended
from tidegate.pipelines.observe.report.answer import Answer
from tidegate.pipelines.observe.report.plain_text import templates_in
from tidegate.pipelines.observe.report.plots import lag, plots
from tidegate.pipelines.observe.report.run import RunReport
from tidegate.pipelines.storage.artifacts import Artifacts, ArtifactsInFolder, page_name, report_name
from tidegate.windowing.time import show_duration, show_millis, show_time, show_watermark

_SHOWN_EPOCHS = 15
_TEMPLATES = Path(__file__).parent

ADVICE = "advice.html"
"""Page of the lateness curve, next to the run reports."""


def write_report(
    config: Config,
    pipeline: str,
    run: RunReport,
    to: Path | None = None,
    more: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Write the report of an epoch's run, and return its path or URI.

    `more` has plots as SVG by title, shown before the others. Without a file, the report is one of the artifacts.
    """
    has_advice = to is None and artifacts_of(config).written_at(page_name(pipeline, ADVICE)) is not None
    return _write(config, report_name(pipeline, run.manifest.epoch), to, render(run, has_advice=has_advice, more=more))


def write_answer(
    config: Config, name: str, answer: Answer, title: str, plots: Mapping[str, str], to: Path | None
) -> str:
    """Write an answer as a page, and return its path or URI.

    The plots, as SVG by title, are shown before its tables. Without a file, the page has its name among the artifacts.
    """
    template = templates_in(_TEMPLATES).get_template("answer.html")
    page = template.render(title=title, plots=plots, shown=answer._repr_html_())
    return _write(config, name, to, page)


def _write(config: Config, name: str, to: Path | None, page: str) -> str:
    artifacts: Artifacts = artifacts_of(config)
    if to is not None:
        artifacts, name = ArtifactsInFolder(to.absolute().parent), to.name
    artifacts.write(name, page.encode())
    return artifacts.address(name)


def render(
    run: RunReport,
    now: datetime | None = None,
    has_advice: bool = False,
    more: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Return the page as HTML that loads nothing from elsewhere."""
    templates, manifest = templates_in(_TEMPLATES), run.manifest
    templates.filters["moment"] = _moment
    row = run.epoch
    return templates.get_template("page.html").render(
        run=run,
        epoch=row,
        time="Clock" if manifest.ends_by_clock else "Watermark",
        reached=(show_millis if manifest.ends_by_clock else show_watermark)(manifest.ended_through),
        # If the clock ends the windows, the watermark is irrelevant to them.
        lag=show_duration(None if manifest.ends_by_clock else lag(row)),
        interval=_interval(run),
        counters=[
            (counter.label, counter.name, row.get(counter.name), run.total(counter.name))
            for counter in COUNTERS
            if counter.label
        ],
        lengths=_lengths(run),
        plots={**more, **plots(run)},
        failed=[check for check in run.quality if not check.success],
        has_ended=has_ended,
        began=next((each["epoch"] for each in run.epochs if each["watermark"] is not None), None),
        last_epochs=list(reversed(run.epochs[-_SHOWN_EPOCHS:])),
        now=now or datetime.now(UTC),
        advice=ADVICE if has_advice else None,
        # Other windows have no trace, and none of their rows is ever late.
        ends_by_time=bool(run.timeline) and not manifest.ends_by_clock,
    )


def _interval(run: RunReport) -> str | None:
    interval = run.manifest.interval
    return None if interval is None else f"{show_millis(interval.start)} to {show_millis(interval.end)}"


def _lengths(run: RunReport) -> dict[str, Any] | None:
    if not run.lengths:
        return None
    ordered = sorted(run.lengths)
    return {
        "windows": len(ordered),
        "shortest": show_duration(ordered[0]),
        "median": show_duration(ordered[len(ordered) // 2]),
        "longest": show_duration(ordered[-1]),
    }


def _moment(value: Any) -> str:
    if value is None:
        return "-"
    return show_time(value.replace(microsecond=value.microsecond // 1000 * 1000))
