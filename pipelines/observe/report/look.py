"""The style sheet that Data Docs and the page in Airflow share. Each page includes it, since the pages load nothing."""

from __future__ import annotations

from functools import cache
from pathlib import Path


@cache
def look() -> str:
    """Return the style sheet."""
    return Path(__file__).with_name("look.css").read_text(encoding="utf-8")
