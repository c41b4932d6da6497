"""For tests of a user's own pipelines: a whole Pipeline value over rows, without Spark."""

from tidegate.pipelines.testing.harness import PipelineHarness, SourceColumns

__all__ = ["PipelineHarness", "SourceColumns"]
