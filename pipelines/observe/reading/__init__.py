"""Read the tables of a pipeline: with `spark.read.format("tidegate")`, as a stream, and as rows in Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyspark.sql import SparkSession


def register_format(spark: SparkSession, config: str | Path | None = None) -> None:
    """Register the format `tidegate` with a session, with a default for its option `config`.

    If the wheel is installed, Spark finds the format itself, through package `pyspark_tidegate`, and this call changes
    nothing. It is needed in a checkout, and in a Spark Connect session whose server lacks the wheel.

    Args:
        spark: the session, of Spark 4.0 or newer, classic or Connect.
        config: path of the tidegate.toml that names pipelines. None for the one that TIDEGATE_CONFIG names, or the
            nearest one from the current folder up, if any. It is resolved now, because the session's readers run in
            other processes.

    Raises:
        UsageError: the extra `spark` is not installed; or Spark found the format itself and uses another tidegate.toml
            than `config`.
    """
    from tidegate.extras import require
    from tidegate.pipelines.definition.config import find_config
    from tidegate.pipelines.errors import UsageError

    require("the format `tidegate` of Spark", "pyspark", "pandas")
    from pyspark.errors import AnalysisException

    from tidegate.pipelines.observe.reading.data_source import format_of

    found: Path | None = None
    with suppress(UsageError):
        found = find_config()
    path = found if config is None else Path(config)
    try:
        spark.dataSource.register(format_of(path))
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
        if path is not None and (found is None or path.resolve() != found.resolve()):
            raise UsageError(
                f"config = {str(config)!r}: Spark found the format `tidegate` itself, so its default can't be "
                f'changed. Name the file in each read, .option("config", {str(path.resolve())!r}), or set '
                "TIDEGATE_CONFIG before Spark starts"
            ) from error


def read_view(
    pipeline: str,
    view: str = "final",
    *,
    columns: Sequence[str] | None = None,
    where: str | pc.Expression | None = None,
    config: str | Path | None = None,
) -> pa.Table:
    """Return the current rows of a view of a pipeline, without Spark: for DuckDB, Polars, pandas and others.

    Args:
        pipeline: name of the pipeline in tidegate.toml.
        view: `final`, `latest`, `windows`, `all`, `late`, `rejects`, `epochs` or `state`.
        columns: names of the columns; None for all.
        where: a condition on the rows, in the form of the format's option (`user = 'ann' AND epoch > 3`), or an Arrow
            expression; files without such rows are not read.
        config: path of tidegate.toml; None for the one that TIDEGATE_CONFIG names, or the nearest one from the current
            folder up.

    Raises:
        UsageError: there is no such pipeline, view or column, or the condition does not fit its columns.
        Refused: the pipeline has no published epoch yet.
    """
    from tidegate.pipelines.observe.reading.target import Target

    return Target.of(pipeline, view, None if config is None else Path(config)).table_of(columns, where)
