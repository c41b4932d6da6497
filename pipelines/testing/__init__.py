"""For tests of a user's own pipelines: a whole Pipeline value over rows, without Spark."""

from pipelines.testing.harness import PipelineHarness

__all__ = ["PipelineHarness"]
