"""Data Docs: a page of each check, and one that lists them. They load nothing, run nothing, and show text as text.

Great Expectations' own pages put values into HTML as they are, and take style, script and logo from elsewhere.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader

from tidegate.pipelines.report.look import look
from tidegate.windowing.time import show_millis

if TYPE_CHECKING:
    from tidegate.expectations.outcome import Outcome
    from tidegate.expectations.pinned import Pinned
    from tidegate.expectations.suites import TableSuite

INDEX = "index.html"
KEPT = 500
"""Pages of a pipeline; the oldest go, and table `quality` has their results."""

_LIST = "checks.json"


def write_page(
    folder: Path,
    pinned: Pinned,
    check_id: str,
    checked_at: datetime,
    outcome: str,
    found: Sequence[tuple[TableSuite, Sequence[Outcome]]],
) -> Path:
    """Write the page of a check, and the list of all checks anew; the list's path.

    Args:
        folder: of the pipeline's pages.
        pinned: what was checked.
        check_id: of table `quality`.
        checked_at: when.
        outcome: passed, marked or failed.
        found: how each expectation went, by suite.
    """
    manifest = pinned.manifest
    name = f"check-{manifest.epoch:06d}-{check_id[:12]}.html"
    suites = [
        {"rows": suite.table, "looked_at": outcomes[0].rows if outcomes else 0, "outcomes": outcomes}
        for suite, outcomes in found
    ]
    check = {
        "page": name,
        "epoch": manifest.epoch,
        "timeline": manifest.timeline,
        "checked_at": f"{checked_at:%Y-%m-%d %H:%M:%S}",
        "outcome": outcome,
        "failed": sorted({one.expectation.type for _, outcomes in found for one in outcomes if not one.success}),
    }
    proof = pinned.scope.proof
    pages = _environment()
    text = pages.get_template("docs_check.html").render(
        pipeline=manifest.pipeline,
        check=check,
        watermark=show_millis(manifest.watermark),
        from_epoch=None if proof is None else proof.epoch,
        suites=suites,
    )
    with _alone_in(folder):
        _write(folder / name, text)
        checks = [check, *_known(folder)]
        for gone in checks[KEPT:]:
            (folder / gone["page"]).unlink(missing_ok=True)
        _write(folder / _LIST, json.dumps(checks[:KEPT]))
        listed = pages.get_template("docs_index.html").render(pipeline=manifest.pipeline, checks=checks[:KEPT])
        _write(folder / INDEX, listed)
    return folder / INDEX


def _known(folder: Path) -> list[dict[str, Any]]:
    """The checks that have a page, the newest first."""
    try:
        known: list[dict[str, Any]] = json.loads((folder / _LIST).read_text())
    except FileNotFoundError:
        return []
    return known


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Wait until no other check writes to the list."""
    with (folder / "lock").open("w") as file:
        # Given back when the file is closed, however the process ends.
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _write(file: Path, text: str) -> None:
    """Put a file in its place whole: somebody may look at it at any moment."""
    part = file.with_name(f"{file.name}.{os.getpid()}.part")
    part.write_text(text)
    part.replace(file)


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["number"] = lambda value: f"{value:,}"
    environment.globals["look"] = look()
    return environment
