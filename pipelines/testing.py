"""A harness for tests of a user's own pipelines: it runs a whole Pipeline value over rows, without Spark."""

from tidegate.pipelines.project.harness import PipelineHarness, SourceColumns

__all__ = ["PipelineHarness", "SourceColumns"]
