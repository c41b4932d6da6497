"""The run report in a browser: it loads by itself, shows the numbers of the tables, and fits a phone."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pyarrow.compute as pc
import pytest
from playwright.sync_api import Page

from tests.browser.picture import SIZE, take
from tests.expectations.quality_lake import session_lake
from tidegate.pipelines.definition import epochs, results
from tidegate.pipelines.definition.config.opened import warehouse_of
from tidegate.pipelines.ledger.tables import quality
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.project.cli import run
from tidegate.pipelines.storage.warehouse import read_table
from tidegate.windowing.time import show_watermark, to_millis

pytestmark = pytest.mark.browser


@pytest.fixture
def project(tmp_path: Path) -> tuple[Path, PipelineTables]:
    """A project with two epochs, checked and reported; the report and the tables."""
    config = session_lake().write(tmp_path)
    entry = config.pipelines["sessions"]
    (tmp_path / "tidegate.toml").write_text(f'[pipelines.sessions]\nobject = "{entry.object}"\nstart = 2024-03-01\n')
    for command in (["quality", "check", "sessions"], ["report", "sessions", "--to", str(tmp_path / "report.html")]):
        assert run([*command, "--config", str(tmp_path / "tidegate.toml")]) == 0
    return tmp_path / "report.html", PipelineTables(warehouse_of(config), "sessions")


def number(text: str) -> int:
    return int(text.replace(",", ""))


def test_a_report_shows_the_numbers_of_the_tables(
    project: tuple[Path, PipelineTables], page: Page, keep: Callable[[Page, str], Path]
) -> None:
    report, tables = project
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.goto(report.as_uri())
    assert [url for url in requested if not url.startswith(("file:", "data:"))] == [], "it loads nothing from elsewhere"

    rows = read_table(tables.warehouse, tables.open(epochs.NAME))
    newest = rows.sort_by([("epoch", "descending")]).to_pylist()[0]
    for counter in ("events_in", "on_time", "late", "rejected", "fired_on_time", "fired_late", "retracted"):
        cells = page.locator(f"#counters tr[data-counter={counter}] td.n").all_inner_texts()
        assert [number(cell) for cell in cells] == [newest[counter], pc.sum(rows[counter]).as_py()], counter
    assert number(page.inner_text("#open-windows")) == newest["open_windows"]
    assert page.inner_text("#watermark") == show_watermark(to_millis(newest["watermark"]))

    panes = read_table(tables.warehouse, tables.open(results.NAME))
    assert number(page.inner_text("#final-windows")) == len(panes), "each of these windows fired once and is final"
    checks = quality.newest(tables)
    assert page.locator("#quality tr").count() - 1 == len(checks)
    assert page.inner_text("#quality-state") == "passed"
    assert page.locator("figure svg").count() == 6, "every plot but that of the lag, which a backfill has not"
    assert keep(page, "run-report").stat().st_size > 10_000


def test_a_report_is_light_and_fits_a_phone(
    project: tuple[Path, PipelineTables], page: Page, keep: Callable[[Page, str], Path]
) -> None:
    report, _ = project
    assert report.stat().st_size < 500_000
    page.set_viewport_size({"width": 375, "height": 800})
    page.goto(report.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= 375, "nothing hangs over the edge"
    for plot in page.locator("figure svg").all():
        box = plot.bounding_box()
        assert box is not None
        assert box["width"] > 250
    keep(page, "run-report-phone")


@pytest.mark.long
def test_a_report_is_dark_where_the_reader_wants_it_and_its_legend_stands_beside_the_plot(
    project: tuple[Path, PipelineTables], page: Page, keep: Callable[[Page, str], Path]
) -> None:
    report, _ = project
    page.emulate_media(color_scheme="dark")
    page.goto(report.as_uri())
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 24, 29)"
    timeline = page.locator("figure").filter(has_text="Windows of")
    assert "watermark" in timeline.locator("figcaption").inner_text()
    keep(page, "run-report-dark")


@pytest.mark.long
def test_the_picture_of_the_readme_can_be_taken_of_a_report(
    project: tuple[Path, PipelineTables], page: Page, tmp_path: Path
) -> None:
    report, _ = project
    take(page, report, tmp_path / "picture.png")
    picture = (tmp_path / "picture.png").read_bytes()
    assert struct.unpack(">II", picture[16:24]) == (SIZE["width"], SIZE["height"])
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(244, 246, 247)"
