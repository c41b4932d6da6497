"""Data Docs: a page for each check, and a list of checks. The pages load nothing, run no scripts, and escape all text.

Great Expectations' own pages put values into HTML unescaped, and load styles, scripts and a logo from other servers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.pipelines.observe.report.plain_text import templates_in
from tidegate.pipelines.storage.artifacts import docs_folder
from tidegate.windowing.time import show_time, show_watermark

if TYPE_CHECKING:
    from tidegate.expectations.pinned import Pinned
    from tidegate.pipelines.ledger.manifest import Manifest
    from tidegate.pipelines.ledger.tables.quality import QualityRow
    from tidegate.pipelines.storage.artifacts import Artifacts

INDEX = "index.html"
KEPT = 500
"""Number of pages kept for each pipeline. Older pages are removed; table `quality` keeps their results."""

_LIST = "checks.json"


def write_page(
    artifacts: Artifacts,
    pinned: Pinned,
    check_id: str,
    checked_at: datetime,
    outcome: str,
    checks: Sequence[QualityRow],
) -> str:
    """Write the page of a check, update the list of all checks, and return the list's address."""
    manifest = pinned.manifest
    name = _page_name(manifest, check_id)
    suites = [(suite, list(rows)) for suite, rows in groupby(checks, key=lambda row: row.suite)]
    check = {
        "page": name,
        "epoch": manifest.epoch,
        "timeline": manifest.timeline,
        "checked_at": show_time(checked_at.astimezone(UTC).replace(microsecond=0)),
        "outcome": outcome,
        "failed": sorted({row.expectation.replace("_", " ") + row.subject for row in checks if not row.success}),
    }
    proof = pinned.scope.proof
    pages = templates_in(Path(__file__).parent)
    text = pages.get_template("docs_check.html").render(
        pipeline=manifest.pipeline,
        check=check,
        watermark=show_watermark(manifest.watermark),
        from_epoch=None if proof is None else proof.epoch,
        suites=suites,
        acknowledged=pinned.acknowledged,
    )
    folder = docs_folder(manifest.pipeline)
    artifacts.write(f"{folder}/{name}", text.encode())
    outdated: list[dict[str, Any]] = []

    def with_check(listed: bytes | None) -> bytes:
        # A store may have written the list although its answer was lost; then the list includes the check.
        others = [other for other in _parsed(listed) if other["page"] != name]
        outdated[:] = others[KEPT - 1 :]
        return json.dumps([check, *others[: KEPT - 1]]).encode()

    artifacts.change(f"{folder}/{_LIST}", with_check)
    for old in outdated:
        _delete(artifacts, folder, old["page"])
    return _write_list(artifacts, manifest.pipeline)


def write_result(artifacts: Artifacts, manifest: Manifest, check_id: str, content: bytes) -> str:
    """Write the JSON of a check next to its page, and return its address. Both are removed together."""
    name = f"{docs_folder(manifest.pipeline)}/{_result_name(_page_name(manifest, check_id))}"
    artifacts.write(name, content)
    return artifacts.address(name)


def remove_page(artifacts: Artifacts, manifest: Manifest, check_id: str) -> None:
    """Remove the page and the JSON of a check, and its line in the list of all checks."""
    name, folder = _page_name(manifest, check_id), docs_folder(manifest.pipeline)
    _delete(artifacts, folder, name)

    def without_check(listed: bytes | None) -> bytes:
        return json.dumps([other for other in _parsed(listed) if other["page"] != name]).encode()

    artifacts.change(f"{folder}/{_LIST}", without_check)
    _write_list(artifacts, manifest.pipeline)


def _delete(artifacts: Artifacts, folder: str, page: str) -> None:
    for name in (page, _result_name(page)):
        artifacts.delete(f"{folder}/{name}")


def _result_name(page: str) -> str:
    return page.replace(".html", ".json")


def _page_name(manifest: Manifest, check_id: str) -> str:
    return f"check-{manifest.epoch:06d}-{check_id[:12]}.html"


def _write_list(artifacts: Artifacts, pipeline: str) -> str:
    """Write the page that lists all checks, and return its address."""
    folder, pages = docs_folder(pipeline), templates_in(Path(__file__).parent)
    shown, newest = None, artifacts.read(f"{folder}/{_LIST}")
    # Another check may have written an older list after this one read the newest.
    while shown != newest:
        listed = pages.get_template("docs_index.html").render(pipeline=pipeline, checks=_parsed(newest))
        artifacts.write(f"{folder}/{INDEX}", listed.encode())
        shown, newest = newest, artifacts.read(f"{folder}/{_LIST}")
    return artifacts.address(f"{folder}/{INDEX}")


def _parsed(listed: bytes | None) -> list[dict[str, Any]]:
    """Return the checks that have a page, newest first. A damaged list is replaced by a new one."""
    try:
        checks: list[dict[str, Any]] = json.loads(listed or b"[]")
    except ValueError:
        return []
    return checks
