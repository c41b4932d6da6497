"""The page of one window, the page of a lateness curve, and the window in a run report, each in a browser. Data Docs in
a browser without a network: they list the checks, and text from the data is shown as text.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.expectations.quality_lake import pane, session_lake
from tests.lake import LOCAL, Lake, at, session_pipeline
from tidegate import Project
from tidegate.pipelines.project.cli import run
from tidegate.windowing import WatermarkStrategy

pytestmark = pytest.mark.browser


@pytest.fixture
def project(lake: Lake) -> Project:
    """A session that results from a merge, accepts a late row within the allowed lateness, and refuses one after
    that.
    """
    pipeline = session_pipeline(
        allowed_lateness=timedelta(hours=1),
        watermark=WatermarkStrategy.for_bounded_out_of_orderness(timedelta(minutes=5)),
    )
    lake.append(("<ann> & co", at("10:00"), 1), ("<ann> & co", at("10:50"), 2))
    lake.append(("<ann> & co", at("10:25"), 4))
    lake.append(("bob", at("11:40"), 8))
    lake.append(("<ann> & co", at("10:55"), 16))
    lake.append(("bob", at("15:00"), 32))
    lake.append(("<ann> & co", at("10:05"), 64))
    lake.stream(LOCAL, pipeline, commits=1)
    return Project(warehouse=lake.folder / "warehouse", work=lake.folder / "work", pipelines=[pipeline], engine="local")


def asked_elsewhere(page: Page, file: Path) -> list[str]:
    """Open a file, and return the external addresses that it requests."""
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.goto(file.as_uri())
    return [url for url in requested if not url.startswith(("file:", "data:"))]


@pytest.mark.parametrize("width", [390, 1280])
def test_a_window_is_shown_with_its_rows_merges_and_panes(
    width: int, project: Project, page: Page, keep: Callable[[Page, str], Path]
) -> None:
    trace = project.trace("sessions", ("<ann> & co",), window=at("10:00"), page=True)
    assert trace.file is not None
    kinds = {"in", "late", "opened", "merged", "fired", "fired late", "cleaned"}
    assert {event.what for event in trace.events} == kinds
    page.set_viewport_size({"width": width, "height": 800})
    assert asked_elsewhere(page, Path(trace.file)) == []
    assert page.inner_text("h1") == "sessions: trace of <ann> & co"
    box = page.locator("figure svg").bounding_box()
    assert box is not None
    assert 300 < box["width"] <= width
    rows = page.locator("table").nth(0).locator("tbody tr")
    assert rows.count() == len(trace.events)
    assert [rows.nth(number).locator("td").nth(3).inner_text() for number in range(rows.count())] == [
        event.what for event in trace.events
    ]
    # A dot for each row, and a triangle for each pane.
    drawn = page.locator("figure svg g[id^='line2d']").count()
    assert drawn >= sum(event.what in ("in", "late", "fired", "fired late") for event in trace.events)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    keep(page, f"window-{width}")


@pytest.mark.long
def test_a_run_report_has_the_window(project: Project, page: Page) -> None:
    report = project.report("sessions", key="<ann> & co", window=at("10:00"))
    assert asked_elsewhere(page, Path(report.file)) == []
    titles = page.locator("figure h2").all_inner_texts()
    assert titles[0] == "Window of <ann> & co from 2024-03-01T10:00:00Z"


@pytest.mark.long
def test_a_curve_is_drawn_and_the_report_leads_to_it(project: Project, page: Page) -> None:
    project.advise("sessions", page=True)
    report = project.report("sessions")
    page.goto(Path(report.file).as_uri())
    page.click("#advice")
    assert page.inner_text("h1") == "sessions: lateness curve"
    assert page.locator("figure svg").count() >= 4
    assert "now" in page.locator("table").nth(0).inner_text()


KEY = '<img src=x onerror=document.title="pwned"><script>document.title="pwned"</script>'


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """The list of two checks. The newer one found overlapping sessions of a key that contains markup."""
    lake = session_lake()
    entry = lake.write(tmp_path).pipelines["sessions"]
    config = tmp_path / "tidegate.toml"
    config.write_text(f'[pipelines.sessions]\nobject = "{entry.object}"\nstart = 2024-03-01\n')
    assert run(["quality", "check", "sessions", "--config", str(config)]) == 0
    (tmp_path / "warehouse").rename(tmp_path / "before")
    lake.panes += [pane(KEY, "12:20", "12:55", epoch=2), pane(KEY, "12:30", "13:05", epoch=2)]
    lake.write(tmp_path)
    assert run(["quality", "check", "sessions", "--config", str(config)]) == 5
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
