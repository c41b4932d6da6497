"""The two example pipelines computed in plain pandas, without windows."""

from __future__ import annotations

import pandas as pd

GAP = pd.Timedelta(hours=3)
_TIES = ["air_time", "distance", "origin", "dest"]


def duty_sessions(flights: pd.DataFrame, end: pd.Timestamp) -> pd.DataFrame:
    """Return the sessions per tail number that are over at `end`; a flight may join until its last millisecond."""
    rows = flights[flights["departed_at"].notna() & flights["tailnum"].notna()]
    rows = rows.sort_values(["tailnum", "departed_at", *_TIES], ignore_index=True)
    apart = rows["departed_at"] - rows.groupby("tailnum")["departed_at"].shift() > GAP
    rows["session"] = (apart | (rows["tailnum"] != rows["tailnum"].shift())).cumsum()
    grouped = rows.groupby("session")
    found = pd.DataFrame(
        {
            "tailnum": grouped["tailnum"].first(),
            "window_start": grouped["departed_at"].min(),
            "window_end": grouped["departed_at"].max() + GAP,
            "flights": grouped.size(),
            "air_minutes": grouped["air_time"].sum(min_count=1),
            "longest_leg": grouped["distance"].max(),
            "first_airport": grouped["origin"].first(),
            "last_airport": grouped["dest"].last(),
        }
    )
    return found[found["window_end"] < end]


def carrier_shifts(flights: pd.DataFrame, end: pd.Timestamp) -> pd.DataFrame:
    """Return the shifts per airline and airport that are over at `end`, as in `duty_sessions`."""
    key = ["carrier", "origin"]
    rows = flights[flights["departed_at"].notna()].sort_values([*key, "departed_at", "flight"], ignore_index=True)
    apart = rows["departed_at"] - rows.groupby(key)["departed_at"].shift() > GAP
    new_key = (rows[key] != rows[key].shift()).any(axis=1)
    grouped = rows.groupby((apart | new_key).cumsum())
    shifts = pd.DataFrame(
        {
            "carrier": grouped["carrier"].first(),
            "origin": grouped["origin"].first(),
            "window_start": grouped["departed_at"].min(),
            "window_end": grouped["departed_at"].max() + GAP,
            "flights": grouped.size(),
            "air_minutes": grouped["air_time"].sum(min_count=1),
            "longest_leg": grouped["distance"].max(),
            "first_flight": grouped["flight"].first(),
            "last_flight": grouped["flight"].last(),
        }
    )
    return shifts[shifts["window_end"] < end]


def airport_hours(flights: pd.DataFrame) -> pd.DataFrame:
    """Hours per origin."""
    rows = flights[flights["departed_at"].notna()]
    hour = rows["departed_at"].dt.floor("h").rename("window_start")
    grouped = rows.groupby(["origin", hour])["dep_delay"]
    found = pd.DataFrame({"departures": grouped.size(), "mean_delay": grouped.mean(), "max_delay": grouped.max()})
    return found.reset_index()


def assert_equal(actual: pd.DataFrame, expected: pd.DataFrame, by: list[str]) -> None:
    """The same windows and the same results; doubles within 1e-9."""
    wanted = list(expected.columns)
    left = actual[wanted].sort_values(by, ignore_index=True)
    right = expected.sort_values(by, ignore_index=True)
    for name in wanted:
        if pd.api.types.is_datetime64_any_dtype(right[name]):
            left[name] = left[name].astype("datetime64[us, UTC]")
            right[name] = right[name].astype("datetime64[us, UTC]")
    pd.testing.assert_frame_equal(left, right, check_dtype=False, rtol=1e-9, atol=0)
