"""Keys of 38 digits that differ only in the last one: each is reopened and forgotten separately."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.lake import LOCAL, Lake, at, hourly_pipeline
from tidegate.pipelines import Pipeline
from tidegate.pipelines.correct.request import Selection
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.snapshots.forget import forget
from tidegate.pipelines.ledger.tables.keys import key_groups
from tidegate.windowing import Count, TumblingEventTimeWindows, WatermarkStrategy, Windows
from tidegate.windowing.assigners import EventTimeSessionWindows, WindowAssigner

HOUR = timedelta(hours=1)
KINDS: dict[str, tuple[pa.DataType, list[Decimal]]] = {
    "integers": (pa.decimal128(38, 0), [Decimal(f"1234567890123456789012345678901234567{last}") for last in (1, 2, 3)]),
    "with a scale": (pa.decimal128(38, 9), [Decimal(f"-98765432109876543210987654321.00000000{n}") for n in (1, 2, 3)]),
}


def counts(assigner: WindowAssigner) -> Pipeline:
    return hourly_pipeline(
        "accounts",
        watermark=WatermarkStrategy.for_monotonous_timestamps(),
        compute=Windows(assigner, aggregate={"events": Count()}),
    )


@pytest.fixture(params=["tumbling", "sessions"])
def pipeline(request: pytest.FixtureRequest) -> Pipeline:
    sessions = EventTimeSessionWindows.with_gap(HOUR)
    return counts(sessions if request.param == "sessions" else TumblingEventTimeWindows.of(HOUR))


def arrive(lake: Lake, pipeline: Pipeline, kind: pa.DataType, *rows: tuple[Decimal, datetime]) -> None:
    schema = pa.schema([("user", kind), ("at", pa.timestamp("us", tz="UTC"))])
    lake.write(pa.Table.from_pylist([{"user": user, "at": time} for user, time in rows], schema=schema))
    lake.replay(LOCAL, pipeline)


def shown(lake: Lake, pipeline: Pipeline) -> Counter[Decimal]:
    """Return the number of elements of each account in the windows."""
    found: Counter[Decimal] = Counter()
    for row in lake.latest(pipeline).to_pylist():
        found[row["user"]] += row["events"]
    return found


@pytest.mark.first(1)
@pytest.mark.parametrize("name", KINDS)
def test_late_rows_of_one_key_are_reopened_without_those_of_its_neighbours(
    lake: Lake, pipeline: Pipeline, name: str
) -> None:
    kind, accounts = KINDS[name]
    arrive(lake, pipeline, kind, *((account, at("01:10")) for account in accounts), (accounts[0], at("09:00")))
    arrive(lake, pipeline, kind, *((account, at("01:20")) for account in accounts))
    assert shown(lake, pipeline) == dict.fromkeys(accounts, 1)
    manifest = lake.reopen(LOCAL, pipeline, Selection(key=(str(accounts[1]),)))
    assert manifest.counters["reopened"] == 1
    assert shown(lake, pipeline) == {accounts[0]: 1, accounts[1]: 2, accounts[2]: 1}
    assert lake.reopen(LOCAL, pipeline) is not None
    assert shown(lake, pipeline) == dict.fromkeys(accounts, 2)


@pytest.mark.first(1)
@pytest.mark.parametrize("name", KINDS)
def test_one_key_is_forgotten_and_its_neighbours_stay(lake: Lake, pipeline: Pipeline, name: str) -> None:
    kind, accounts = KINDS[name]
    arrive(lake, pipeline, kind, *((account, at("01:10")) for account in accounts), (accounts[0], at("09:00")))
    arrive(lake, pipeline, kind, *((account, at(time)) for account in accounts for time in ("01:20", "08:50")))
    with Lease(lake.tables(pipeline), "forget", lake.clock):
        forget(lake.tables(pipeline), pipeline, [[str(accounts[2])]], lake.clock())
    for table in ("results", "late", "state"):
        users = {user for user in lake.rows(pipeline, table)["user"].to_pylist() if user is not None}
        assert users <= {*accounts[:2]}
    assert shown(lake, pipeline).keys() == {*accounts[:2]}
    rows = lake.rows(pipeline, "state").filter(pc.is_valid(pc.field("user")))
    assert rows["key_group"].to_pylist() == key_groups(rows, pipeline.key, pipeline.max_parallelism).to_pylist()
