"""Readers who recompute only the announced partitions always agree with the final windows."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from deltalake import DeltaTable

from tests.expectations.test_from_the_last_proof import TAKES_AWAY, a_forgotten_key, epoch
from tests.expectations.test_quality_command import PIPELINES
from tests.lake import LOCAL, Lake, at, hourly_pipeline
from tests.pipelines.by_hand import ByHand, Row
from tidegate import DeltaSource
from tidegate.expectations import changed
from tidegate.expectations.changed import Changed, Mark, changed_partitions
from tidegate.expectations.pinned import pin
from tidegate.pipelines.definition import results
from tidegate.pipelines.definition.config import PartitionUnit
from tidegate.pipelines.ledger.manifest import StaleInterval
from tidegate.pipelines.ledger.snapshots.publish import publish
from tidegate.pipelines.ledger.snapshots.published import pin_epoch
from tidegate.pipelines.ledger.snapshots.savepoint import find_snapshot
from tidegate.pipelines.ledger.tables.compaction import compact
from tidegate.windowing.time import to_millis

HIDDEN = {"window_id", "pane", "timing", "op", "final_at", "watermark", "timeline", "epoch", "emitted_at", "stale"}


@dataclass
class Readers:
    """Readers of the final windows, who read only announced partitions again.

    Args:
        by_hand: pipeline of the windows.
        unit: length of a partition.
    """

    by_hand: ByHand
    unit: PartitionUnit = "hour"
    mark: Mark | None = None
    read: dict[str, Counter[Any]] = field(default_factory=dict)

    def final(self) -> dict[str, Counter[Any]]:
        """Return the final windows by partition."""
        partitions: dict[str, Counter[Any]] = {}
        shape = {"hour": "%Y-%m-%dT%H:00:00", "day": "%Y-%m-%dT00:00:00", "month": "%Y-%m-01T00:00:00"}[self.unit]
        for row in pin_epoch(self.by_hand.tables).final_windows().to_pylist():
            key = row["window_start"].strftime(shape)
            seen = tuple(value for name, value in row.items() if name not in HIDDEN)
            partitions.setdefault(key, Counter())[seen] += 1
        return partitions

    def tell(self) -> set[str]:
        """Announce changes to the readers, and return the partitions that they read again."""
        told = changed_partitions(pin(self.by_hand.tables, self.by_hand.pipeline), self.unit, self.mark)
        assert told.is_any == bool(len(told.starts)), "each of these windows lies in a partition"
        self.mark = Mark.parse(json.dumps(told.mark.to_dict()))
        final = self.final()
        for key in told.to_dict()["keys"]:
            self.read[key] = final.get(key, Counter())
        return set(told.to_dict()["keys"])

    def assert_up_to_date(self) -> None:
        read = {key: windows for key, windows in self.read.items() if windows}
        assert read == self.final()


def told_exactly(readers: Readers) -> None:
    """Announce changes to the readers; each partition that they read again differs from what they had."""
    before = dict(readers.read)
    told = readers.tell()
    assert {key for key in told if before.get(key, Counter()) == readers.read[key]} == set()
    readers.assert_up_to_date()


@pytest.mark.first(2)
@pytest.mark.parametrize(
    ("happens", "name"),
    [
        # Each action and each pipeline once; all combinations in the long form.
        pytest.param(happens, name, marks=() if first == second else pytest.mark.long)
        for first, happens in enumerate((*TAKES_AWAY, lambda by_hand: None))
        for second, name in enumerate(PIPELINES)
    ],
)
def test_readers_have_what_the_final_windows_say_and_read_nothing_in_vain(
    happens: Callable[[ByHand], None], name: str, tmp_path: Path
) -> None:
    by_hand, draw = ByHand(tmp_path, PIPELINES[name]()), random.Random(name)
    readers = Readers(by_hand)
    for number in range(1, 4):
        epoch(by_hand, number, draw)
        told_exactly(readers)
    compact(by_hand.tables, results.NAME)
    told_exactly(readers)
    epoch(by_hand, 4, draw)
    happens(by_hand)
    if happens is a_forgotten_key:
        # An erasure removes the old files, so it is unknown which windows of the key were removed.
        assert readers.tell() >= set(readers.final())
        readers.assert_up_to_date()
    else:
        told_exactly(readers)
    for number in (5, 6):
        epoch(by_hand, number, draw)
    told_exactly(readers)
    assert readers.tell() == set(), "nothing is told twice"


DAYS = [(at("00:00", day), at("00:00", day + 1)) for day in range(4)]


def backfilled(folder: Path) -> ByHand:
    """Four days, each with an hour of ann at ten, and one of bob that begins before midnight."""
    by_hand = ByHand(folder, hourly_pipeline())
    for day in range(4):
        run_day(by_hand, day)
    return by_hand


@pytest.fixture(scope="module")
def four_days(tmp_path_factory: pytest.TempPathFactory) -> ByHand:
    """The same for tests that change nothing."""
    return backfilled(tmp_path_factory.mktemp("four days"))


def run_day(by_hand: ByHand, day: int, *more: Row, replaced: tuple[int, ...] = (), parent: Any = None) -> None:
    rows: tuple[Row, ...] = (("ann", at("10:00", day), 1), ("bob", at("23:30", day), 1), *more)
    start, end = DAYS[day]
    if not replaced:
        by_hand.epoch(*rows, watermark=end, kind="backfill", interval=(start, end))
        return
    stale = tuple(
        StaleInterval(start=to_millis(DAYS[later][0]), end=to_millis(DAYS[later][1]), epochs=(later + 1,))
        for later in range(day + 1, 4)
        if later + 1 not in replaced
    )
    planned = by_hand.planned(rows, end, "backfill", (start, end), parent, stale)
    before = to_millis(start) if parent is None else parent.manifest.watermark
    plan = replace(planned.plan, parent=parent, replaced_epochs=replaced, watermark_before=before)
    publish(by_hand.tables, by_hand.committed(replace(planned, plan=plan)))


def days(*numbers: int) -> set[str]:
    return {at("00:00", number).strftime("%Y-%m-%dT00:00:00") for number in numbers}


@pytest.mark.long
def test_an_interval_run_again_names_the_days_whose_windows_differ(tmp_path: Path) -> None:
    by_hand = backfilled(tmp_path)
    readers = Readers(by_hand, "day")
    assert readers.tell() == days(0, 1, 2, 3)
    run_day(by_hand, 1, ("eve", at("12:00", 1), 5), replaced=(2,), parent=find_snapshot(by_hand.tables, "1"))
    run_day(by_hand, 2, replaced=(3,), parent=by_hand.head())
    run_day(by_hand, 3, replaced=(4,), parent=by_hand.head())
    assert readers.tell() == days(1), "the days after it were computed again, and came out as they were"
    readers.assert_up_to_date()


@pytest.mark.long
def test_days_that_became_stale_are_told_of_when_they_are_run_again(tmp_path: Path) -> None:
    by_hand = backfilled(tmp_path)
    readers = Readers(by_hand, "day")
    readers.tell()
    run_day(by_hand, 1, ("eve", at("12:00", 1), 5), replaced=(2,), parent=find_snapshot(by_hand.tables, "1"))
    assert readers.tell() == days(1)
    compact(by_hand.tables, results.NAME)
    assert readers.tell() == set()
    run_day(by_hand, 2, replaced=(3,), parent=by_hand.head())
    run_day(by_hand, 3, replaced=(4,), parent=by_hand.head())
    assert readers.tell() == days(2, 3)
    readers.assert_up_to_date()


def test_a_check_of_an_older_epoch_tells_nothing_and_leaves_the_mark(four_days: ByHand) -> None:
    readers = Readers(four_days, "day")
    readers.tell()
    of_older = changed_partitions(pin(four_days.tables, four_days.pipeline, 2), "day", readers.mark)
    assert (of_older.to_dict()["keys"], of_older.mark) == ([], readers.mark)


def test_a_table_that_was_made_anew_is_told_of_as_a_whole(four_days: ByHand) -> None:
    readers = Readers(four_days, "day")
    readers.tell()
    assert readers.mark is not None
    readers.mark = replace(readers.mark, table="another")
    assert readers.tell() == days(0, 1, 2, 3)


def test_a_mark_of_another_version_of_tidegate_is_none() -> None:
    assert Mark.parse('{"epoch": 1}') is None
    assert Mark.parse("nothing") is None


def test_keys_are_the_starts_of_partitions_in_utc(tmp_path: Path) -> None:
    by_hand = ByHand(tmp_path, hourly_pipeline())
    for moment in (datetime.fromisoformat(f"{day}T23:59:59Z") for day in ("1969-12-31", "2024-02-29")):
        by_hand.epoch(("ann", moment, 1), watermark=moment + timedelta(days=1))
    pinned = pin(by_hand.tables, by_hand.pipeline)
    units: dict[PartitionUnit, list[str]] = {
        "hour": ["1969-12-31T23:00:00", "2024-02-29T23:00:00"],
        "day": ["1969-12-31T00:00:00", "2024-02-29T00:00:00"],
        "month": ["1969-12-01T00:00:00", "2024-02-01T00:00:00"],
    }
    assert {unit: changed_partitions(pinned, unit, None).to_dict()["keys"] for unit in units} == units


def test_keys_are_the_local_starts_of_partitions_in_the_pipelines_zone(tmp_path: Path) -> None:
    by_hand = ByHand(tmp_path, hourly_pipeline())
    for moment in ("2023-10-31T23:00:00Z", "2024-10-26T21:59:59Z", "2024-10-27T00:30:00Z", "2024-10-27T01:30:00Z"):
        at_ = datetime.fromisoformat(moment)
        by_hand.epoch(("ann", at_, 1), watermark=at_ + timedelta(minutes=30))
    by_hand.epoch(watermark=datetime.fromisoformat("2024-10-28T00:00:00Z"))
    pinned = pin(by_hand.tables, by_hand.pipeline)

    def keys(unit: PartitionUnit, since: Mark | None = None, failing: Any = None) -> dict[str, Any]:
        return changed_partitions(pinned, unit, since, failing, "Europe/Berlin").to_dict()

    assert keys("month")["keys"] == ["2023-11-01T00:00:00", "2024-10-01T00:00:00"]
    assert keys("day")["keys"] == ["2023-11-01T00:00:00", "2024-10-26T00:00:00", "2024-10-27T00:00:00"]
    # The clocks show the hour from 2 to 3 twice.
    assert keys("hour")["keys"] == ["2023-11-01T00:00:00", "2024-10-26T23:00:00", "2024-10-27T02:00:00"]
    held = keys("day", failing=np.array(["2024-10-26T22:00:00"], "datetime64[ms]"))
    assert (held["held_keys"], held["count"]) == (["2024-10-27T00:00:00"], 2)


def test_if_the_zone_changes_every_partition_is_told_again(four_days: ByHand) -> None:
    readers = Readers(four_days, "day")
    readers.tell()
    pinned = pin(four_days.tables, four_days.pipeline)
    elsewhere = changed_partitions(pinned, "day", readers.mark, zone="America/New_York")
    assert len(elsewhere.starts) >= 4
    again = Mark.parse(json.dumps(elsewhere.mark.to_dict()))
    assert len(changed_partitions(pinned, "day", again, zone="America/New_York").starts) == 0


def test_too_many_partitions_are_counted_and_not_named(four_days: ByHand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changed, "MOST_KEYS", 3)
    told: Changed = changed_partitions(pin(four_days.tables, four_days.pipeline), "day", None)
    first, last = (at("00:00", day).strftime("%Y-%m-%dT00:00:00") for day in (0, 3))
    assert told.to_dict() == {
        "unit": "day",
        "is_any": True,
        "count": 4,
        "first": first,
        "last": last,
        "keys": None,
        "held": 0,
        "held_keys": None,
        "mark": told.mark.to_dict(),
    }


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long), pytest.param(3, marks=pytest.mark.long)])
def test_rows_that_change_in_the_source_are_told_of_by_the_hours_of_their_windows(seed: int, tmp_path: Path) -> None:
    lake, draw = Lake(tmp_path), random.Random(seed)
    pipeline = hourly_pipeline(source=DeltaSource("events", timestamp="at", changes="correct"))
    readers = Readers(cast("ByHand", SimpleNamespace(tables=lake.tables(pipeline), pipeline=pipeline)))
    for number in range(1, 4):
        rows = [
            (draw.choice(("ann", "bob")), at("00:00") + timedelta(minutes=draw.randrange(720)), 1) for _ in range(8)
        ]
        lake.append(*rows, ("eve", at("12:00") + timedelta(hours=number), 1))
        lake.stream(LOCAL, pipeline)
        told_exactly(readers)
        table = DeltaTable(lake.path("events"))
        if number % 2:
            table.update({"value": "value + 1"}, predicate="user = 'ann'")
        else:
            table.delete("user = 'bob'")
        lake.stream(LOCAL, pipeline)
        told_exactly(readers)
