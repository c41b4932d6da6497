"""The days of the flights, and the airlines whose records change afterwards. Help reads them, so no table is loaded."""

from __future__ import annotations

from datetime import date

FIRST_DAY = date(2013, 1, 1)
DAYS = 365

HELD_BACK, CORRECTED = "MQ", "UA"
"""The airline whose records of the first day arrive late, and the one whose records are corrected afterwards."""
