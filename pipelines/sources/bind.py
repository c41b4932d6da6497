"""Check of a pipeline against the newest version of its source."""

from __future__ import annotations

from tidegate.pipelines.config import Config
from tidegate.pipelines.definition.binding import BoundPipeline, bind_all
from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.sources.log import SourceLog
from tidegate.pipelines.sources.places import check_places
from tidegate.pipelines.storage import arrow_schema, warehouse_of


def bind_to_source(config: Config, pipeline: Pipeline) -> BoundPipeline:
    """Check a pipeline against the newest version of its source. Only derived columns need a start of Spark.

    Raises:
        Refused: the source does not exist, or `bind` refuses.
    """
    warehouse = warehouse_of(config)
    check_places(warehouse, pipeline)
    paths = [warehouse.path(part.source.table) for part in pipeline.inputs]
    heads = [SourceLog(warehouse, path).head for path in paths]
    if not any(part.columns for part in pipeline.inputs):
        plain = [arrow_schema(warehouse.open(path, head)) for path, head in zip(paths, heads, strict=True)]
        return bind_all(pipeline, [(schema, schema) for schema in plain])
    from tidegate.pipelines.sources.frames import SourceFrames
    from tidegate.pipelines.spark.session import start_session

    session = start_session(config, f"check {pipeline.name}")
    try:
        frames = [
            SourceFrames(session, path, pipeline, part) for path, part in zip(paths, pipeline.inputs, strict=True)
        ]
        return bind_all(pipeline, [frame.schemas(head) for frame, head in zip(frames, heads, strict=True)])
    finally:
        session.stop()
