"""The look that Data Docs and the page in Airflow share. It stands in each page, for these load nothing."""

from __future__ import annotations

from functools import cache
from pathlib import Path


@cache
def look() -> str:
    """The style sheet."""
    return Path(__file__).with_name("look.css").read_text(encoding="utf-8")
