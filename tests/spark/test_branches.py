"""A branch whose epochs run on Spark: it is compared with its pipeline and promoted, and the pipeline continues."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.lake import Lake, hourly_pipeline
from tests.pipelines.project.test_branches import HOUR, WIDE, at, compared, more, shown, totals
from tidegate import Pipeline, Project

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.long]


def test_a_branch_runs_on_spark_and_is_compared_and_promoted(spark: SparkSession, lake: Lake) -> None:
    def project_of(pipeline: Pipeline) -> Project:
        return Project(
            warehouse=lake.folder / "warehouse", work=lake.folder / "work", pipelines=[pipeline], spark=spark
        )

    lake.append(("ann", at("00:10"), 1), ("ann", at("00:20"), 2), ("bob", at("05:00"), 4))
    project = project_of(hourly_pipeline())
    project.stream("hours")
    project.branch("hours", "wide", settings=WIDE)
    more(lake)
    for name in ("hours", "hours@wide"):
        project.stream(name)
    assert compared(project) == {("ann", 5): (4, 20, 16, 1, "1 row(s) that were late")}
    expected = shown(project, "hours@wide")
    project = project_of(hourly_pipeline(allowed_lateness=2 * HOUR))
    project.promote("hours", "wide")
    assert shown(project, "hours") == expected
    lake.append(("ann", at("09:30"), 32), ("bob", at("15:00"), 1))
    project.stream("hours")
    assert totals(project, "hours")["ann", 9] == 32
    assert lake.snapshot(hourly_pipeline()).manifest.engine is None, "it ran on Spark"
    assert project.verify("hours", sample="all").faults == ()
