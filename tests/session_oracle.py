"""Sessions of (user, at, value) rows, merged pair by pair in plain Python."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta

import pandas as pd


def sessions(rows: Iterable[tuple[str, datetime, int]], gap: timedelta) -> pd.DataFrame:
    """Return one row per session: user, bounds, number of events and total. Sessions that touch are one."""
    by_user: dict[str, list[tuple[datetime, int]]] = defaultdict(list)
    for user, moment, value in rows:
        by_user[user].append((moment, value))
    found = []
    for user, events in by_user.items():
        begin = end = None
        count = total = 0
        for moment, value in sorted(events):
            if end is not None and moment > end:
                found.append((user, begin, end, count, total))
                begin, count, total = None, 0, 0
            begin = moment if begin is None else begin
            end, count, total = moment + gap, count + 1, total + value
        found.append((user, begin, end, count, total))
    return pd.DataFrame(found, columns=["user", "window_start", "window_end", "events", "total"])
