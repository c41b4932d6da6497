"""For tests of a user's own pipelines: a whole Pipeline value over rows, without Spark."""

from pipelines.testing.harness import PipelineHarness, SourceColumns

__all__ = ["PipelineHarness", "SourceColumns"]
