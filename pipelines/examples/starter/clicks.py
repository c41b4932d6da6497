"""The rows of the sample table: clicks of three users."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta

import pyarrow as pa

SCHEMA = pa.schema(
    [("user", pa.string()), ("at", pa.timestamp("us", tz="UTC")), ("page", pa.string()), ("cents", pa.int64())]
)

_PAGES = ("/", "/shoes", "/hats", "/cart", "/paid")
_VISITS = (("ann", time(8, 40), 5), ("bob", time(12, 15), 3), ("ann", time(19, 5), 2), ("cem", time(23, 50), 5))
"""User, first click and number of clicks of each visit in a day; each click comes five minutes after the last one."""


def clicks_of(day: date) -> pa.Table:
    """Return the sample rows of the visits that begin on a day; the last one continues after midnight."""
    rows = []
    for user, begin, clicks in _VISITS:
        first = datetime.combine(day, begin, UTC)
        for number, page in enumerate(_PAGES[:clicks]):
            paid = 1900 + 100 * day.day if page == "/paid" else 0
            rows.append({"user": user, "at": first + timedelta(minutes=5 * number), "page": page, "cents": paid})
    return pa.Table.from_pylist(rows, schema=SCHEMA)
