"""A project without a file can rename its pipelines."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from tidegate import Count, DeltaSource, EventTimeSessionWindows, Pipeline, Project, WatermarkStrategy, Windows


def test_a_pipeline_given_as_a_value_is_renamed(tmp_path: Path) -> None:
    at = pa.array([datetime(2024, 3, 1, tzinfo=UTC)], pa.timestamp("us", tz="UTC"))
    write_deltalake(tmp_path / "clicks", pa.table({"user": ["ann"], "at": at}))
    visits = Pipeline(
        name="visits",
        source=DeltaSource("clicks", timestamp="at"),
        key=("user",),
        watermark=WatermarkStrategy.for_monotonous_timestamps(),
        compute=Windows(EventTimeSessionWindows.with_gap(timedelta(minutes=30)), aggregate={"clicks": Count()}),
    )

    def project(pipeline: Pipeline) -> Project:
        return Project(warehouse=tmp_path, pipelines=[pipeline], engine="local", work=tmp_path / ".work")

    project(visits).stream("visits", end_of_input=True)
    renamed = project(replace(visits, name="calls"))
    renamed.rename("visits", "calls")
    assert renamed.results("calls").total == 1
