"""Data Docs in a browser without a network: they list the checks, and text from the data stays text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.expectations.quality_lake import pane, session_lake
from tidegate.pipelines.project.cli import run

pytestmark = pytest.mark.browser

KEY = '<img src=x onerror=document.title="pwned"><script>document.title="pwned"</script>'


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """The list of two checks, of which the newer one found sessions of a key with markup in it that overlap."""
    lake = session_lake()
    entry = lake.write(tmp_path).pipelines["sessions"]
    config = tmp_path / "tidegate.toml"
    config.write_text(f'[pipelines.sessions]\nobject = "{entry.object}"\nstart = 2024-03-01\n')
    assert run(["quality", "sessions", "--config", str(config)]) == 0
    (tmp_path / "warehouse").rename(tmp_path / "before")
    lake.panes += [pane(KEY, "12:20", "12:55", epoch=2), pane(KEY, "12:30", "13:05", epoch=2)]
    lake.write(tmp_path)
    assert run(["quality", "sessions", "--config", str(config)]) == 5
    return tmp_path / ".work" / "quality" / "sessions" / "index.html"


@pytest.mark.long
def test_data_docs_need_no_network_and_run_nothing(index: Path, page: Page, keep: Callable[[Page, str], Path]) -> None:
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.context.set_offline(True)
    page.goto(index.as_uri())
    rows = page.locator("#checks tr")
    expect(rows).to_have_count(3)
    expect(rows.nth(1)).to_contain_text("expect sessions to lie apart")
    assert page.locator("#checks .pill").all_inner_texts() == ["failed", "passed"]
    keep(page, "data-docs")

    rows.nth(1).get_by_role("link").click()
    expect(page.locator("#outcome")).to_have_text("failed")
    expect(page.get_by_text(KEY).first).to_be_visible()
    assert page.title() == "sessions, epoch 2: failed"
    assert page.locator("img").count() + page.locator("script").count() == 0
    keep(page, "data-docs-check")
    page.get_by_role("link", name="All checks of sessions").click()
    expect(rows).to_have_count(3)
    assert [url for url in requested if not url.startswith(("file:", "data:"))] == []


@pytest.mark.long
def test_data_docs_fit_a_phone_and_the_dark(index: Path, page: Page) -> None:
    page.set_viewport_size({"width": 375, "height": 800})
    page.emulate_media(color_scheme="dark")
    page.goto(index.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == "rgb(18, 24, 29)"
