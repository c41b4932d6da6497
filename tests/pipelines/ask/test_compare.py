"""`compare`: in which windows two pipelines over one source differ, by how much, and why."""

from __future__ import annotations

import json
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tests.lake import Lake, at, hourly_pipeline, session_pipeline
from tests.pipelines.project.cli.project import Project as CommandLine
from tidegate.pipelines.errors import Refused, TidegateError, UsageError
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.ledger.snapshots import restore as restoring
from tidegate.pipelines.ledger.snapshots.publish import publish_table
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.project.project import Project
from tidegate.windowing import (
    KeyedProcess,
    KeyedProcessFunction,
    SlidingEventTimeWindows,
    Sum,
    WatermarkStrategy,
    Windows,
)

HOUR = timedelta(hours=1)
WIDE = {"allowed_lateness": 2 * HOUR}
SLOW = {"watermark": WatermarkStrategy.for_bounded_out_of_orderness(4 * HOUR)}
BECAUSE = "other settings or other code put its rows into other windows"


def both(lake: Lake, changed: dict[str, Any], **settings: Any) -> Project:
    """A project with pipeline `hours`, and pipeline `wide`, in which some settings are different."""
    return lake.project(hourly_pipeline(**settings), hourly_pipeline(name="wide", **{**settings, **changed}))


def stream(project: Project, *names: str) -> None:
    for name in names or ("hours", "wide"):
        project.stream(name)


def begin(lake: Lake) -> None:
    lake.append(("ann", at("00:10"), 1), ("ann", at("00:20"), 2), ("bob", at("05:00"), 4))


def more(lake: Lake) -> None:
    """A commit that moves the watermark to 07:00, and one with a row of an hour before it."""
    lake.append(("ann", at("04:30"), 8), ("bob", at("08:00"), 4), ("ann", at("05:10"), 4))
    lake.append(("ann", at("05:11"), 16), ("bob", at("12:00"), 4))


def compared(project: Project) -> dict[tuple[str, int], tuple[Any, ...]]:
    """Totals before and after, their difference, late rows and reason, by user and hour."""
    return {
        (each.key["user"], each.window_start.hour): (
            each.before and each.before["total"],
            each.after and each.after["total"],
            each.by.get("total"),
            each.late,
            each.why.partition(",")[0],
        )
        for each in project.compare("hours", "wide").windows
    }


def test_a_comparison_says_which_windows_differ_by_how_much_and_why(lake: Lake) -> None:
    project = both(lake, WIDE)
    begin(lake)
    stream(project)
    more(lake)
    stream(project, "wide")
    unread = project.compare("hours", "wide")
    assert unread.read == {"events": (0, 2)}
    assert {each.why.partition(",")[0] for each in unread.windows} == {"not fired yet in hours"}
    assert any('project.stream("hours")' in str(line) for line in unread.shown())
    stream(project, "hours")
    comparison = project.compare("hours", "wide")
    assert (comparison.since, comparison.settings) == (0, {"allowed_lateness": (0, 7_200_000)})
    assert (comparison.changed, comparison.added, comparison.missing, comparison.equal) == (1, 0, 0, 4)
    assert compared(project) == {("ann", 5): (4, 20, 16, 1, "1 row late in hours but not in wide")}
    assert comparison.read == {"events": (2, 2)}
    assert "4 -&gt; 20" in comparison._repr_html_()
    assert "allowed_lateness is 2 h in wide, and 0 ms in hours" in str(comparison)
    assert len(comparison.to_arrow()) == 1


def test_a_pipeline_is_not_compared_while_a_killed_restore_is_half_published(lake: Lake) -> None:
    project = both(lake, WIDE)
    begin(lake)
    stream(project)
    more(lake)
    stream(project)

    def publish_in_part(tables: PipelineTables, manifest: Manifest) -> None:
        publish_table(tables, manifest, "results")
        if manifest.kind == "restore":
            raise InterruptedError

    with pytest.MonkeyPatch.context() as planted:
        planted.setattr(restoring, "publish", publish_in_part)
        with pytest.raises(InterruptedError):
            project.restore("hours", 1)
    with pytest.raises(TidegateError, match="is removing rows right now"):
        project.compare("hours", "wide")


def test_a_late_row_counts_only_in_the_sliding_windows_that_it_is_in(lake: Lake) -> None:
    windows = [
        Windows(
            SlidingEventTimeWindows.of(HOUR, HOUR / 4), aggregate={"total": Sum("value")}, allowed_lateness=lateness
        )
        for lateness in (0 * HOUR, 4 * HOUR)
    ]
    project = both(lake, {"compute": windows[1]}, compute=windows[0])
    lake.append(("ann", at("00:10"), 1))
    stream(project)
    lake.append(("bob", at("09:00"), 1))
    lake.append(("ann", at("05:50"), 2), ("ann", at("06:05"), 4))
    stream(project)
    found = project.compare("hours", "wide").windows
    assert [(f"{each.window_start:%H:%M}", each.late) for each in found if each.key["user"] == "ann"] == [
        ("05:00", 1),
        *((start, 2) for start in ("05:15", "05:30", "05:45")),
        ("06:00", 1),
    ]


def test_the_difference_of_decimals_is_a_decimal(lake: Lake) -> None:
    project = both(lake, WIDE, columns={"value": "cast(cast(value as string) as decimal(10, 2))"})
    begin(lake)
    stream(project)
    more(lake)
    stream(project)
    differences = [each for each in project.compare("hours", "wide").windows if each.before and each.after]
    assert [each.by for each in differences] == [{"events": 1, "total": Decimal(16)}]


def test_windows_that_only_one_pipeline_has_are_compared_too(lake: Lake) -> None:
    project = both(lake, {"allowed_lateness": 0 * HOUR, **SLOW}, allowed_lateness=6 * HOUR)
    begin(lake)
    stream(project)
    lake.append(("ann", at("04:30"), 8), ("bob", at("08:00"), 4), ("ann", at("05:10"), 4))
    lake.append(("ann", at("03:00"), 16), ("bob", at("08:30"), 4))
    stream(project)
    assert compared(project) == {
        ("ann", 3): (16, None, None, -1, "1 row late in wide but not in hours"),
        ("ann", 4): (8, None, None, 0, "not fired yet in wide"),
        ("ann", 5): (4, None, None, 0, "not fired yet in wide"),
        ("bob", 5): (4, None, None, 0, "not fired yet in wide"),
    }
    assert len(project.compare("hours", "wide", rows=1).windows) == 1


def test_late_rows_of_a_derived_key_are_not_matched_by_the_column_of_the_source(lake: Lake) -> None:
    project = both(lake, WIDE, columns={"user": "case when user = 'ann' then 'bob' else 'ann' end"})
    begin(lake)
    stream(project)
    lake.append(("ann", at("05:10"), 8), ("bob", at("05:20"), 8), ("bob", at("08:00"), 4))
    lake.append(("bob", at("05:30"), 16), ("bob", at("05:40"), 16), ("ann", at("05:50"), 1), ("bob", at("12:00"), 4))
    stream(project)
    assert compared(project) == {("ann", 5): (12, 44, 32, 0, BECAUSE), ("bob", 5): (8, 9, 1, 0, BECAUSE)}


def test_sessions_of_another_gap_are_other_windows(lake: Lake) -> None:
    project = lake.project(session_pipeline(), session_pipeline(gap=timedelta(minutes=5), name="short"))
    begin(lake)
    stream(project, "sessions", "short")
    lake.append(("ann", at("06:00"), 1), ("ann", at("06:10"), 2), ("bob", at("10:00"), 4))
    stream(project, "sessions", "short")
    comparison = project.compare("sessions", "short")
    assert [(each.before or each.after)["total"] for each in comparison.windows][-3:] == [1, 3, 2]  # type: ignore[index]
    assert {each.why.partition(",")[0] for each in comparison.windows} == {BECAUSE}
    assert comparison.settings == {"gap": (1_800_000, 300_000)}


class Echo(KeyedProcessFunction):
    """Emits each row."""

    result_type = pa.struct([("value", pa.int64())])

    def process_element(self, value: Any, ctx: Any) -> Any:
        yield {"value": value["value"]}


def test_rows_of_a_function_are_compared_as_multisets(lake: Lake) -> None:
    slow = {"watermark": WatermarkStrategy.for_bounded_out_of_orderness(3 * HOUR)}
    project = both(lake, slow, compute=KeyedProcess(Echo()))
    lake.append(("ann", at("00:10"), 1), ("bob", at("05:00"), 4))
    stream(project)
    lake.append(("ann", at("06:00"), 8), ("ann", at("06:00"), 8), ("bob", at("08:30"), 4))
    lake.append(("ann", at("06:30"), 16), ("bob", at("12:00"), 2))
    stream(project)
    comparison = project.compare("hours", "wide")
    assert (comparison.equal, comparison.changed, comparison.added, comparison.missing) == (5, 0, 1, 0)
    (row,) = comparison.windows
    assert (row.key, row.window_start, row.before, row.after) == (
        {"user": "ann"},
        at("06:30"),
        None,
        {"output": None, "value": 16},
    )
    text = str(comparison)
    assert "differs from hours in 1 of 6 rows:" in text
    assert "ann   2024-03-01T06:30:00Z  - -> null  - -> 16" in text
    # A second row equal to another counts separately.
    lake.append(("ann", at("12:30"), 1), ("ann", at("12:30"), 1), ("bob", at("14:00"), 2))
    lake.append(("bob", at("20:00"), 1))
    stream(project, "wide")
    twice = [each.why for each in project.compare("hours", "wide").windows if each.window_start == at("12:30")]
    assert twice == ["not fired yet in hours, whose watermark is before its end"] * 2


def test_pipelines_that_can_not_be_compared_are_refused(lake: Lake) -> None:
    begin(lake)
    by_value = hourly_pipeline(name="by_value", key=("value",), aggregate={"total": Sum("value")})
    rows = hourly_pipeline(name="rows", compute=KeyedProcess(Echo()))
    project = lake.project(hourly_pipeline(), by_value, rows)
    stream(project, "hours", "by_value", "rows")
    with pytest.raises(Refused, match=r"hours has the key \(user string\), and by_value \(value int64\)"):
        project.compare("hours", "by_value")
    with pytest.raises(Refused, match="has windows and the other has not"):
        project.compare("hours", "rows")
    with pytest.raises(UsageError, match="both pipelines are 'hours'"):
        project.compare("hours", "hours")
    with pytest.raises(UsageError, match="unknown pipeline 'none'"):
        project.compare("hours", "none")


def test_the_command_line(lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    project = both(lake, WIDE)
    begin(lake)
    stream(project)
    (lake.folder / "two_pipelines.py").write_text(
        "from tests.lake import hourly_pipeline, timedelta\nhours = hourly_pipeline()\n"
        "wide = hourly_pipeline(name='wide', allowed_lateness=timedelta(hours=2))\n"
    )
    entries = "".join(
        f'[pipelines.{name}]\nobject = "two_pipelines:{name}"\nstart = 2024-03-01\n' for name in ("hours", "wide")
    )
    (lake.folder / "tidegate.toml").write_text(f'engine = "local"\nwork = "work"\n\n{entries}')
    shell = CommandLine(lake.folder, capsys)
    compared = json.loads(json.dumps(project.compare("hours", "wide").to_dict()))
    assert compared == shell.data("compare", "hours", "wide")
