"""Data Docs: a page for each check, and a list of them. The pages load nothing, run no script, and escape all text.

Great Expectations' own pages put values into HTML without escaping, and load style, script and logo from elsewhere.
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
from tidegate.pipelines.report.plain_text import plain_value
from tidegate.windowing.time import show_millis

if TYPE_CHECKING:
    from tidegate.expectations.outcome import Outcome
    from tidegate.expectations.pinned import Pinned
    from tidegate.expectations.suites import TableSuite

INDEX = "index.html"
KEPT = 500
"""Number of pages that a pipeline keeps; older ones are removed, and table `quality` has their results."""

_LIST = "checks.json"


def write_page(
    folder: Path,
    pinned: Pinned,
    check_id: str,
    checked_at: datetime,
    outcome: str,
    outcomes_by_suite: Sequence[tuple[TableSuite, Sequence[Outcome]]],
) -> Path:
    """Write the page of a check, write the list of all checks again, and return the list's path.

    Args:
        folder: folder of the pipeline's pages.
        pinned: the tables that were checked.
        check_id: id of the check in table `quality`.
        checked_at: time of the check.
        outcome: passed, marked or failed.
        outcomes_by_suite: the outcome of each expectation, by suite.
    """
    manifest = pinned.manifest
    name = f"check-{manifest.epoch:06d}-{check_id[:12]}.html"
    suites = [
        {"rows": suite.table, "looked_at": outcomes[0].rows if outcomes else 0, "outcomes": outcomes}
        for suite, outcomes in outcomes_by_suite
    ]
    check = {
        "page": name,
        "epoch": manifest.epoch,
        "timeline": manifest.timeline,
        "checked_at": f"{checked_at:%Y-%m-%d %H:%M:%S}",
        "outcome": outcome,
        "failed": sorted(
            {
                checked.expectation.type
                for _, outcomes in outcomes_by_suite
                for checked in outcomes
                if not checked.success
            }
        ),
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
        checks = [check, *_listed_checks(folder)]
        for gone in checks[KEPT:]:
            (folder / gone["page"]).unlink(missing_ok=True)
        _write(folder / _LIST, json.dumps(checks[:KEPT]))
        listed = pages.get_template("docs_index.html").render(pipeline=manifest.pipeline, checks=checks[:KEPT])
        _write(folder / INDEX, listed)
    return folder / INDEX


def _listed_checks(folder: Path) -> list[dict[str, Any]]:
    """Return the checks that have a page, the newest first."""
    try:
        checks: list[dict[str, Any]] = json.loads((folder / _LIST).read_text())
    except FileNotFoundError:
        return []
    return checks


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Hold the lock of the list during the body; wait until no other check holds it."""
    with (folder / "lock").open("w") as file:
        # The lock is released when the file is closed, also if the process is killed.
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _write(file: Path, text: str) -> None:
    """Replace a file at once, since somebody may read it at any moment."""
    part = file.with_name(f"{file.name}.{os.getpid()}.part")
    part.write_text(text)
    part.replace(file)


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=plain_value,
    )
    environment.filters["number"] = lambda value: f"{value:,}"
    environment.globals["look"] = look()
    return environment
