"""The explanation of a pipeline: its operator, what reads its source, and the steps of an epoch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from tidegate.pipelines.definition.binding import check_windows
from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.definition.config.opened import warehouse_of
from tidegate.pipelines.definition.load import load_pipeline
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.snapshots.head import read_snapshot
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.observe.inspect.explanation import Explanation, look_at_source
from tidegate.pipelines.observe.inspect.explanation import explain as explained
from tidegate.pipelines.observe.report.answer import Answer, Grid, Shown, as_plain
from tidegate.pipelines.run.backfill import way_back_to_backfill
from tidegate.pipelines.sources.open_source import missing_sources, sources_of_panes

_CATCHUP = (
    "catchup = true lets Airflow backfill every interval since start. A stream takes over for good: from the first run "
    "of {name}__stream on, each later backfill run is refused (exit code 3). Use one of the two, or set catchup = "
    "false: docs/guide/modes.md"
)
_BY_BACKFILL = (
    "a backfill has run, up to epoch {epoch}. The first run of a stream continues after that epoch and takes over "
    "for good: pause {name}__backfill before you unpause {name}__stream"
)
_BY_STREAM = (
    "a stream has taken over, at epoch {epoch}: intervals of a backfill are refused, so pause {name}__backfill. {way}"
)


@dataclass(frozen=True, slots=True)
class Explained(Answer):
    """How a pipeline runs.

    Args:
        explanation: the operator, the order of events, and the steps of an epoch.
        missing: a message for each source table that does not exist.
        of_panes: sources that are tables of panes, in which retractions count as rows too.
        notes: remarks on the settings.
    """

    explanation: Explanation
    missing: dict[str, str]
    of_panes: tuple[str, ...]
    notes: tuple[str, ...]

    main: ClassVar[str] = "steps"

    def require(self) -> Self:
        """Return this explanation, provided that its columns were checked.

        Raises:
            Refused: a source does not exist, so the columns could not be checked.
        """
        if self.missing:
            raise Refused(
                f"{self.explanation.pipeline}: no source table at {', '.join(self.missing)}, so no run can begin"
            )
        return self

    def to_dict(self) -> dict[str, Any]:
        operator = self.explanation.operator
        return {
            **as_plain(self.explanation),
            "operator": {"name": operator.name, "reason": operator.reason},
            "missing_tables": list(self.missing),
            "tables_of_panes": list(self.of_panes),
            "notes": list(self.notes),
        }

    def shown(self) -> Iterator[Shown]:
        explanation = self.explanation
        for message in self.missing.values():
            yield f"no column could be checked: {message}"
        for name in self.of_panes:
            yield (
                f"source {name} has a row for each pane of a window, and rows that retract panes: all of them count. "
                'Read a copy of the final windows: docs/guide/consuming.md, "A second pipeline"'
            )
        operator = explanation.operator
        yield f"{explanation.pipeline} uses the {operator.name} operator: {operator.reason}"
        yield f"engine: {explanation.engine}"
        yield f"order: {explanation.order}"
        steps = [(number, step.where, step.does) for number, step in enumerate(explanation.steps, 1)]
        yield Grid("an epoch", ("", "where", "what"), steps)
        yield from self.notes


def explain(config: Config, pipeline: str) -> Explained:
    value = load_pipeline(config, pipeline)
    check_windows(value, config.entry(pipeline).windows)
    explanation = explained(value, look_at_source(config, value), config.engine)
    warehouse = warehouse_of(config)
    notes = [_CATCHUP.format(name=pipeline)] if config.entry(pipeline).catchup and not config.values else []
    if (driver := _driven_by(config, pipeline)) is not None:
        notes.insert(0, driver)
    return Explained(
        explanation, dict(missing_sources(value, warehouse)), tuple(sources_of_panes(value, warehouse)), tuple(notes)
    )


def _driven_by(config: Config, pipeline: str) -> str | None:
    """Return whether a backfill or a stream drives a pipeline, and how to switch, or None before the first epoch."""
    tables = PipelineTables.of(config, pipeline)
    head = read_snapshot(tables)
    if head is None:
        return None
    if head.manifest.driven_by == "backfill":
        return _BY_BACKFILL.format(name=pipeline, epoch=head.manifest.epoch)
    return _BY_STREAM.format(name=pipeline, epoch=head.manifest.epoch, way=way_back_to_backfill(tables, head))
