"""The choice of a run's engine: `engine` in tidegate.toml, or the option `--engine` of a command."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidegate.pipelines.definition.config import Config

if TYPE_CHECKING:
    from tidegate.pipelines.engine.base import Engine


def require_engine(config: Config, subject: str) -> None:
    """Check that what the project's engine needs is installed.

    Args:
        config: the project.
        subject: what needs the engine, such as `a backfill`; the message begins with it.

    Raises:
        UsageError: it is not installed; the error names the extra.
    """
    if config.engine == "spark" and config.session is None:
        from tidegate.pipelines.engine.spark.session import require_spark

        require_spark(config, subject)


def engine_of(
    config: Config, name: str, starts: Callable[[], None] = lambda: None, pipeline: str | None = None
) -> Engine:
    """Return the engine of a project, which starts what it needs on first use. The caller closes it.

    Args:
        config: the project.
        name: purpose of the run, shown in Spark's UI.
        starts: called before Spark starts.
        pipeline: the only pipeline that the engine runs, whose next run may get its processes; None for several.
    """
    if config.engine == "local":
        from tidegate.pipelines.engine.local import LocalEngine

        return LocalEngine.of(config, pipeline)
    from tidegate.pipelines.engine.spark.engine import SparkEngine

    if config.session is not None:
        from tidegate.pipelines.engine.spark.given import BorrowedSession

        return BorrowedSession(config)
    return SparkEngine.of(config, name, starts)
