"""A pipeline checked against its source as it is now."""

from __future__ import annotations

from tidegate.pipelines.config import Config
from tidegate.pipelines.definition.binding import BoundPipeline, bind_all
from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.sources.log import SourceLog
from tidegate.pipelines.sources.places import check_places
from tidegate.pipelines.storage import arrow_schema, warehouse_of


def bind_to_source(config: Config, pipeline: Pipeline) -> BoundPipeline:
    """Check a pipeline against its source as it is now; Spark is started only for the types of derived columns.

    Raises:
        Refused: there is no such source, or as `bind` does.
    """
    warehouse = warehouse_of(config)
    check_places(warehouse, pipeline)
    paths = [warehouse.path(each.source.table) for each in pipeline.inputs]
    heads = [SourceLog(warehouse, path).head for path in paths]
    if not any(each.columns for each in pipeline.inputs):
        plain = [arrow_schema(warehouse.open(path, head)) for path, head in zip(paths, heads, strict=True)]
        return bind_all(pipeline, [(schema, schema) for schema in plain])
    from tidegate.pipelines.sources.frames import SourceFrames
    from tidegate.pipelines.spark.session import start_session

    session = start_session(config, f"check {pipeline.name}")
    try:
        frames = [
            SourceFrames(session, path, pipeline, each) for path, each in zip(paths, pipeline.inputs, strict=True)
        ]
        return bind_all(pipeline, [each.schemas(head) for each, head in zip(frames, heads, strict=True)])
    finally:
        session.stop()
