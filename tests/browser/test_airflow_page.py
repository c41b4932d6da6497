"""The page in Airflow, through a real API server: who may see it, what it shows, where its links lead."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, FrameLocator, Page, StorageState, expect

from tidegate.pipelines.airflow.embedded import USER, EmbeddedAirflow
from tidegate.pipelines.definition.config import load_config
from tidegate.pipelines.definition.config.opened import warehouse_of
from tidegate.pipelines.ledger.snapshots.head import list_snapshots, read_snapshot
from tidegate.pipelines.ledger.snapshots.savepoint import create_savepoint, delete_savepoint
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.project.cli import run
from tidegate.windowing.time import show_watermark

pytestmark = [pytest.mark.browser, pytest.mark.airflow]

PATHS = ("", "pipelines", "pipelines/sessions", "pipelines/sessions/reports/2", "pipelines/nothing")


@pytest.fixture(scope="module")
def config(airflow: EmbeddedAirflow) -> Path:
    return Path(airflow.settings["TIDEGATE_CONFIG"])


@pytest.fixture(scope="module")
def tables(config: Path) -> PipelineTables:
    return PipelineTables(warehouse_of(load_config(config)), "sessions")


@pytest.fixture(scope="module")
def logged_in(airflow: EmbeddedAirflow, browser: Browser) -> StorageState:
    """A login by the form, which all pages of this module reuse."""
    page = browser.new_page()
    page.goto(f"{airflow.url}/auth/login/")
    page.fill("input[name=username]", USER)
    page.fill("input[name=password]", airflow.password)
    page.click("button[type=submit]")
    page.wait_for_url(f"{airflow.url}/")
    kept = page.context.storage_state()
    page.close()
    return kept


@pytest.fixture
def embedded(airflow: EmbeddedAirflow, page: Page) -> FrameLocator:
    """The page as Airflow shows it to a logged-in user, with the details of pipeline sessions."""
    page.goto(f"{airflow.url}/plugin/tidegate")
    return with_details(page)


def with_details(page: Page) -> FrameLocator:
    """Open the details of pipeline sessions, which are closed at first if there are several pipelines."""
    frame = page.frame_locator("iframe")
    frame.locator("main[data-loaded]").wait_for()
    if not frame.locator("[data-row=sessions].open").count():
        frame.locator("[data-row=sessions] .name").click()
    frame.locator("[data-pipeline=sessions]").wait_for()
    return frame


@pytest.mark.long
@pytest.mark.parametrize("path", PATHS)
def test_nobody_sees_anything_without_a_login(path: str, airflow: EmbeddedAirflow) -> None:
    answer = httpx.get(f"{airflow.url}/tidegate/{path}")
    assert answer.status_code == 401
    assert "sessions" not in answer.text
    forged = httpx.get(f"{airflow.url}/tidegate/{path}", headers={"Authorization": "Bearer forged"})
    assert forged.status_code in (401, 403)


@pytest.mark.long
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_the_page_changes_nothing(method: str, airflow: EmbeddedAirflow) -> None:
    token = httpx.post(f"{airflow.url}/auth/token", json={"username": USER, "password": airflow.password})
    headers = {"Authorization": f"Bearer {token.json()['access_token']}"}
    for path in PATHS:
        assert httpx.request(method, f"{airflow.url}/tidegate/{path}", headers=headers).status_code in (404, 405)


@pytest.mark.long
def test_the_page_shows_the_true_numbers_of_the_tables(
    embedded: FrameLocator, page: Page, tables: PipelineTables, keep: Callable[[Page, str], Path]
) -> None:
    snapshot = read_snapshot(tables)
    assert snapshot is not None
    manifest = snapshot.manifest
    card = embedded.locator("[data-pipeline=sessions]")
    expect(card.locator("[data-fact=watermark]")).to_have_text(show_watermark(manifest.watermark))
    for fact, value in (
        ("epoch", manifest.epoch),
        ("timeline", manifest.timeline),
        ("open_windows", manifest.counters["open_windows"]),
        ("late", manifest.counters["late"]),
        ("driven_by", "stream"),
        ("late_total", 1),
        ("rejected_total", 1),
    ):
        expect(card.locator(f"[data-fact={fact}]")).to_have_text(str(value))
    newest = card.locator("[data-table=epochs] tr").nth(1).locator("td")
    expect(newest).to_have_text(["2", "backfill", "1 s", "4", "4", "1", "1"])
    rows = card.locator("[data-table=snapshots] tr")
    expect(rows).to_have_count(1 + len(list_snapshots(tables)))
    size = sum(file["size_bytes"] for file in (*snapshot.files, *snapshot.manifest_files))
    assert rows.nth(1).locator("td").nth(6).inner_text() == f"{size / 1000:,.1f} kB".replace(".0 ", " ")
    keep(page, "airflow-page")


@pytest.mark.long
def test_the_page_fits_a_phone(embedded: FrameLocator, page: Page, keep: Callable[[Page, str], Path]) -> None:
    page.set_viewport_size({"width": 375, "height": 800})
    expect(embedded.locator("[data-pipeline=sessions] dl")).to_be_visible()
    beyond = embedded.locator("html").evaluate("page => page.scrollWidth - page.clientWidth")
    assert beyond <= 0, "nothing hangs over the edge"
    keep(page, "airflow-page-phone")


@pytest.mark.long
def test_savepoints_and_quality_appear_as_they_come(
    embedded: FrameLocator, page: Page, tables: PipelineTables, config: Path
) -> None:
    card = embedded.locator("[data-pipeline=sessions]")
    snapshot = read_snapshot(tables)
    assert snapshot is not None
    create_savepoint(tables, snapshot, "before_upgrade", 1_700_000_000_000)
    try:
        assert run(["quality", "check", "sessions", "--report", "--config", str(config)]) == 0
        page.reload()
        with_details(page)
        expect(card.locator("[data-fact=quality]")).to_have_text("epoch 2: passed")
        expect(card.locator("[data-fact=checked_at]")).to_have_text(re.compile(r"^20\d\d-"))
        expect(card.locator("[data-table=savepoints]")).to_contain_text("before_upgrade")
        with page.expect_popup() as opened:
            card.get_by_role("link", name="report", exact=True).first.click()
        expect(opened.value.locator("h1")).to_have_text("sessions, epoch 2")
        with page.expect_popup() as opened:
            card.get_by_role("link", name="Data Docs").click()
        expect(opened.value.locator("#checks")).to_contain_text("passed")
    finally:
        delete_savepoint(tables, "before_upgrade")


@pytest.mark.long
def test_restart_opens_the_trigger_form_of_the_stream(
    embedded: FrameLocator, page: Page, keep: Callable[[Page, str], Path]
) -> None:
    embedded.locator("[data-pipeline=sessions]").get_by_role("link", name="Restart…").click()
    form = page.get_by_role("dialog")
    expect(form).to_contain_text("Trigger Dag - sessions__restart", timeout=20_000)
    for title in ("Start from", "Parallelism", "Stop the running stream"):
        expect(form).to_contain_text(title)
    keep(page, "restart-form")
    assert re.search("/dags/sessions__restart$", page.url)


@pytest.mark.long
def test_restart_at_a_snapshot_fills_the_form_with_its_epoch(embedded: FrameLocator, page: Page) -> None:
    row = embedded.locator("[data-table=snapshots] tr").nth(1)
    epoch = row.locator("td").first.inner_text()
    row.get_by_role("link", name="restart", exact=True).click()
    expect(page.locator("#element_restore")).to_have_value(epoch, timeout=20_000)


@pytest.mark.long
def test_links_lead_to_the_dags(embedded: FrameLocator, page: Page) -> None:
    embedded.locator("[data-pipeline=sessions]").get_by_role("link", name="Backfill").click()
    page.wait_for_url("**/dags/sessions__backfill")
    expect(page.get_by_text("sessions__backfill").first).to_be_visible()
