"""With `hold = "partitions"` a failed check holds back only the partitions of the failing windows."""

from __future__ import annotations

import json
import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.expectations.quality_lake import hour_lake
from tests.expectations.test_acknowledge import FEW
from tests.expectations.test_changed_partitions import Readers
from tests.expectations.test_failed_expectation import checked, project
from tests.expectations.test_own_suite import suite_of
from tests.lake import at, hourly_pipeline
from tests.pipelines.by_hand import ByHand
from tidegate.expectations import changed
from tidegate.expectations.changed import Mark, changed_partitions
from tidegate.expectations.pinned import pin
from tidegate.pipelines.definition.config import PartitionUnit, load_config
from tidegate.pipelines.errors import UsageError

HOLD = 'hold = "partitions"\n'
TEN, ELEVEN = "2024-03-01T10:00:00", "2024-03-01T11:00:00"


def checks(folder: Path, printed: pytest.CaptureFixture[str], mark: Any = None) -> tuple[int, Any]:
    """Check by hour since a mark; return exit code and partitions."""
    printed.readouterr()
    code = checked(folder, "--json", "--partitions=hour", *([f"--since={json.dumps(mark)}"] if mark else []))
    answers = printed.readouterr().out
    return code, json.JSONDecoder().raw_decode(answers)[0]["partitions"]


@pytest.mark.first(2)
@pytest.mark.parametrize(
    ("query", "held"),
    [
        ('SELECT "user", window_start, window_end FROM {batch} WHERE events > 3', [TEN]),
        ('SELECT "user", events FROM {batch} WHERE events > 3', None),
        ("SELECT window_start - INTERVAL '1 day' AS window_start FROM {batch} WHERE events > 3", None),
        ("SELECT 'monday' AS window_start FROM {batch} WHERE events > 3", None),
    ],
)
def test_a_query_holds_back_the_windows_that_it_names_or_everything(
    query: str, held: list[str] | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project(hour_lake(), tmp_path, suite_of(f"gxe.UnexpectedRowsExpectation(unexpected_rows_query={query!r})"), HOLD)
    code, partitions = checks(tmp_path, capsys)
    assert (code, partitions and partitions["held_keys"]) == (5, held)


MEAN = "gxe.ExpectColumnMeanToBeBetween(column='events', max_value=0.5)"
ROWS = "gxe.ExpectColumnValuesToBeBetween(column='events', max_value=3{})"


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("suite", "hold"),
    [
        pytest.param(suite_of(MEAN, ROWS.format("")), HOLD, id="an expectation without rows"),
        pytest.param(suite_of(ROWS.format("")), "", id="by default"),
    ],
)
def test_everything_is_held_back(suite: str, hold: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project(hour_lake(), tmp_path, suite, hold)
    assert checks(tmp_path, capsys) == (5, None)


def test_a_broken_rule_of_ours_holds_back_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake = hour_lake()
    lake.panes[0] |= {"window_id": 5}
    project(lake, tmp_path, FEW, HOLD)
    assert checks(tmp_path, capsys) == (5, None)


def test_warnings_hold_back_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project(hour_lake(), tmp_path, suite_of(ROWS.format(", severity='warning'")), HOLD)
    code, partitions = checks(tmp_path, capsys)
    assert (code, partitions["keys"], partitions["held"]) == (0, [TEN, ELEVEN], 0)


def test_more_partitions_than_an_event_names_are_held_back_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    project(hour_lake(), tmp_path, FEW, HOLD)
    monkeypatch.setattr(changed, "MOST_KEYS", 1)
    assert checks(tmp_path, capsys) == (5, None)


def test_partitions_are_needed_to_hold_them_back(tmp_path: Path) -> None:
    project(hour_lake(), tmp_path, FEW, f'{HOLD}asset_partitions = "none"\n')
    with pytest.raises(UsageError, match='hold "partitions" needs partitioned events'):
        load_config(tmp_path / "tidegate.toml").entry("hours")


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 12))])
def test_readers_are_told_of_everything_but_what_fails(seed: int, tmp_path: Path) -> None:
    """Windows of any partition fail some checks, while epochs add and correct rows and the unit changes."""
    draw, by_hand = random.Random(seed), ByHand(tmp_path, hourly_pipeline())
    readers, clock = Readers(by_hand), at("00:00")
    for number in range(5):
        rows = [("ann", clock + timedelta(minutes=draw.randrange(300)), 1) for _ in range(4)]
        clock += timedelta(hours=6)
        by_hand.epoch(*rows, watermark=clock)
        readers.unit = draw.choice(["hour", "day"])
        final = [*readers.final()]
        bad = draw.sample(final, draw.randrange(len(final) + 1)) if number < 4 else []
        failing = np.array(bad, "datetime64[ms]")
        told = changed_partitions(pin(by_hand.tables, by_hand.pipeline), readers.unit, readers.mark, failing)
        readers.mark = Mark.parse(json.dumps(told.mark.to_dict()))
        keys = told.to_dict()["keys"]
        assert not {*keys} & {*bad}
        assert told.is_any == bool(keys)
        # Readers read what is announced hour by hour, whatever the unit is.
        days = {key[:10] for key in keys}
        unit, readers.unit = readers.unit, "hour"
        for key, windows in readers.final().items():
            if key in keys or (unit == "day" and key[:10] in days):
                readers.read[key] = windows
        waiting = {*bad} if unit == "hour" else {key for key in readers.final() if f"{key[:10]}T00:00:00" in bad}
        assert {key for key, windows in readers.final().items() if readers.read.get(key) != windows} <= waiting
    readers.assert_up_to_date()


@pytest.mark.parametrize(
    ("old", "new", "keys"),
    [
        ("day", "hour", [f"2024-03-01T{hour:02}:00:00" for hour in range(24)]),
        ("hour", "month", ["2024-03-01T00:00:00"]),
    ],
)
def test_held_partitions_of_another_length_are_those_of_the_same_time(
    old: PartitionUnit, new: PartitionUnit, keys: list[str]
) -> None:
    mark = Mark("id", 1, 1, 0, held=(int(at("00:00").timestamp() * 1000),), unit=old)
    assert [str(text) for text in np.datetime_as_string(mark.held_by(new), unit="s")] == keys
