"""Check of a pipeline against the newest version of its source, and the choice of the readers of its inputs."""

from __future__ import annotations

from tidegate.pipelines.config import Config
from tidegate.pipelines.definition.binding import BoundPipeline, bind_all
from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.engine.base import settings_of
from tidegate.pipelines.engine.choose import engine_of
from tidegate.pipelines.engine.spark.functions import function_names
from tidegate.pipelines.sources.choose_reader import Choice, check_correctable, choose_reader, columns_of
from tidegate.pipelines.sources.open_source import open_source
from tidegate.pipelines.sources.places import check_places
from tidegate.pipelines.sources.schemas import without_metadata
from tidegate.pipelines.storage import warehouse_of


def choices_of(config: Config, pipeline: Pipeline) -> list[Choice]:
    """Return who reads each input of a pipeline, without Spark.

    Raises:
        MissingSource: a source does not exist.
        Refused: an expression can't be parsed, names a missing column or function, has types that don't fit, or has
            another value in each run; or Spark reads a source whose changes are to be corrected.
    """
    warehouse, choices = warehouse_of(config), []
    for part in pipeline.inputs:
        source = open_source(part.source, warehouse)
        choice = choose_reader(pipeline, part, source, settings_of(config))
        if choice.expressions:
            # Pipelines without SQL should not wait for this import.
            from tidegate.pipelines.sources.sql.faults import check_expressions

            check_expressions(pipeline, part, without_metadata(source.schema).names, function_names(config))
        check_correctable(pipeline, part, choice)
        choices.append(choice)
    return choices


def bind_to_source(config: Config, pipeline: Pipeline) -> BoundPipeline:
    """Check a pipeline against the newest version of its source. Only columns that Spark evaluates need its start.

    Raises:
        Refused: the source does not exist, or `bind` refuses.
    """
    warehouse = warehouse_of(config)
    check_places(warehouse, pipeline)
    sources = [open_source(part.source, warehouse) for part in pipeline.inputs]
    choices = [
        choose_reader(pipeline, part, source, settings_of(config))
        for part, source in zip(pipeline.inputs, sources, strict=True)
    ]
    typed = [
        (without_metadata(source.schema), choice.derived)
        for source, choice in zip(sources, choices, strict=True)
        if choice.derived is not None
    ]
    if len(typed) == len(sources):
        return bind_all(pipeline, typed)
    engine = engine_of(config, f"check {pipeline.name}")
    try:
        columns = [
            columns_of(pipeline, part, source, choice, engine.columns)
            for part, source, choice in zip(pipeline.inputs, sources, choices, strict=True)
        ]
        return bind_all(pipeline, [(part.source, part.derived) for part in columns])
    finally:
        engine.close()
