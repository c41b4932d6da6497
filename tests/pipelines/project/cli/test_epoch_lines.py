"""`--log json`: a line of JSON for each epoch when it is published, with time, rows and rate, and nothing else."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.lake import Lake, at
from tests.pipelines.project.cli.project import Project
from tidegate.pipelines.run.epoch_log import rate


def lines(project: Project, *arguments: str) -> list[dict[str, Any]]:
    code, told = project.tidegate(*arguments, "--log", "json")
    assert code == 0, told
    return [json.loads(line) for line in told.splitlines()]


def test_a_stream_prints_its_epochs(project: Project, lake: Lake) -> None:
    lake.append(("ann", at("00:10"), 1), ("bob", at("00:20"), 2))
    lake.append(("ann", at("06:00"), 4))
    first, second = lines(project, "stream", "sessions", "--available-now", "--max-commits-per-epoch", "1")
    assert [(line["epoch"], line["events"], line["kind"]) for line in (first, second)] == [
        (1, 2, "stream"),
        (2, 1, "stream"),
    ]
    assert first["rows_per_second"] == rate(2, first["seconds"])
    assert abs(datetime.fromisoformat(second["at"]) - datetime.now(UTC)).total_seconds() < 600


def test_a_backfill_prints_its_intervals(project: Project, lake: Lake) -> None:
    lake.append(("ann", at("00:10"), 1), ("ann", at("03:00", day=1), 2))
    command = ("backfill", "sessions", "--start", "2024-03-01", "--end", "2024-03-03", "--slice", "1d")
    done = lines(project, *command)
    assert [(line["interval"], line["state"], line["events"]) for line in done] == [
        ("2024-03-01", "done", 1),
        ("2024-03-02", "done", 1),
    ]
    assert all({"at", "pipeline", "seconds", "rows_per_second", "watermark"} <= line.keys() for line in done)
    assert [line["state"] for line in lines(project, *command)] == ["unchanged", "unchanged"]


def test_with_json_the_answer_follows_as_the_last_line(project: Project, lake: Lake) -> None:
    lake.append(("ann", at("00:10"), 1))
    epoch, answer = lines(project, "stream", "sessions", "--available-now", "--json")
    assert epoch["events"] == 1
    assert answer["epochs"][0]["epoch"] == epoch["epoch"]


def test_a_message_that_is_no_epoch_is_a_line_too(project: Project, lake: Lake) -> None:
    lake.append(("ann", at("00:10"), 1))
    interval, end = lines(
        project, "backfill", "sessions", "--start", "2024-03-01", "--end", "2024-03-02", "--end-of-input"
    )
    assert interval["state"] == "done"
    assert end["message"].startswith("end of input  done  epoch 2")
    assert end.keys() == {"at", "pipeline", "message"}


@pytest.mark.parametrize(("rows", "seconds", "expected"), [(10, 2.0, 5), (1, 0.0, None), (0, 1.0, 0)])
def test_the_rate_is_rows_by_seconds(rows: int, seconds: float, expected: int | None) -> None:
    assert rate(rows, seconds) == expected
