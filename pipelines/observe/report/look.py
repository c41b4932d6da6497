"""The style sheet of Data Docs and of the page in Airflow. Each page includes it, since pages load nothing."""

from __future__ import annotations

from functools import cache
from pathlib import Path


@cache
def look() -> str:
    """Return the style sheet."""
    return Path(__file__).with_name("look.css").read_text(encoding="utf-8")
