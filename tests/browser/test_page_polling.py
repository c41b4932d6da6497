"""What the page in Airflow asks for: the pipelines on the screen, one request at a time, and no more than it may cost.

No server runs: the browser's requests are answered by the test, and its clock is the test's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Page, Route, expect

from tidegate.pipelines.airflow import page as of_airflow
from tidegate.pipelines.observe.inspect.summary import Summary

pytestmark = [pytest.mark.browser]

ADDRESS = "http://tidegate.test/"
NAMES = [f"p{number:03d}" for number in range(200)]


class Server:
    """Answers the requests of the page, and keeps what was asked for.

    Args:
        names: the pipelines.
        cpu: milliseconds of processor time that an answer says it took.
        held: answers to lines wait until `release`, once it is a list.
        errors: errors of pipelines.
        backfills: the pipelines that a backfill drives; a stream drives the others.
    """

    def __init__(self, names: list[str]) -> None:
        self.names, self.cpu, self.errors = names, 1.0, dict[str, str]()
        self.backfills = set[str]()
        self.asked: list[list[str]] = []
        self.held: list[Route] | None = None

    def __call__(self, route: Route) -> None:
        path, query = urlsplit(route.request.url).path, urlsplit(route.request.url).query
        if path == "/":
            shown = of_airflow.page()
            route.fulfill(body=bytes(shown.body), headers=dict(shown.headers))
        elif path == "/pipelines":
            self.answer(route, self.names)
        elif path == "/summaries":
            self.asked.append(parse_qs(query)["name"])
            if self.held is not None:
                self.held.append(route)
            else:
                self.answer(route, [self.line(name) for name in self.asked[-1]])
        else:
            self.answer(route, {"pipeline": path.rpartition("/")[2], "error": None, "epoch": None})

    def line(self, name: str) -> dict[str, Any]:
        if name in self.errors:
            return {**as_line(Summary(name, error=self.errors[name])), "may_restart": False}
        line = Summary(
            name,
            epoch=7,
            epoch_at=0,
            watermark=0,
            has_lag=True,
            driven_by="backfill" if name in self.backfills else "stream",
            late=3,
            rejected=1,
            quality="never checked",
        )
        return {**as_line(line), "may_restart": True}

    def answer(self, route: Route, content: object) -> None:
        headers = {"Content-Type": "application/json", "Server-Timing": f"cpu;dur={self.cpu}"}
        route.fulfill(body=json.dumps(content), headers=headers)


def as_line(summary: Summary) -> dict[str, Any]:
    return {name: getattr(summary, name) for name in Summary.__dataclass_fields__}


Opened = Callable[[list[str]], Server]


@pytest.fixture
def opened(page: Page) -> Opened:
    """Open the page for some pipelines, until the first lines are there."""

    def open_page(names: list[str]) -> Server:
        server = Server(names)
        page.clock.install()
        page.route(f"{ADDRESS}**", server)
        page.goto(ADDRESS)
        pass_until_loaded(page)
        return server

    return open_page


def pass_until_loaded(page: Page) -> None:
    page.locator("main[data-loaded]").wait_for(timeout=20_000)


def settle(page: Page, seconds: float) -> None:
    """Let the page's clock pass, and answer what it asks for."""
    for _ in range(round(seconds)):
        page.clock.run_for(1000)


def settle_until(page: Page, is_so: Callable[[], bool]) -> None:
    """Let the page's clock pass until something is so, for ten minutes of it at most."""
    for _ in range(600):
        if is_so():
            return
        page.clock.run_for(1000)
    pytest.fail("it never was")


def test_only_the_pipelines_on_the_screen_are_asked_for(
    page: Page, opened: Opened, keep: Callable[[Page, str], Path]
) -> None:
    server = opened(NAMES)
    first = {name for names in server.asked for name in names}
    assert {"p000", "p010"} <= first
    assert len(first) < 30
    settle(page, 20)
    assert {name for names in server.asked for name in names} == first, "a poll asks for the same ones"
    page.locator("[data-row=p199]").scroll_into_view_if_needed()
    settle(page, 2)
    expect(page.locator("[data-row=p199]")).to_contain_text("1970-01-01")
    assert {name for names in server.asked for name in names} < set(NAMES), "rows that were scrolled past"
    keep(page, "airflow-page-many")


def test_the_next_request_is_sent_only_after_the_last_one_was_answered(page: Page, opened: Opened) -> None:
    server = opened(NAMES)
    server.held = []
    settle(page, 60)
    page.locator("[data-row=p199]").scroll_into_view_if_needed()
    settle(page, 60)
    (held,) = server.held
    server.held = None
    server.answer(held, [])
    expect(page.locator("[data-row=p199]")).to_contain_text("1970-01-01", timeout=20_000)
    assert len([names for names in server.asked if "p199" in names]) == 1


def test_an_expensive_page_is_polled_less_often(page: Page, opened: Opened) -> None:
    server = opened(NAMES)
    server.cpu = 2000.0
    settle(page, 17)
    polls = len(server.asked)
    settle(page, 40)
    assert len(server.asked) == polls, "2 s of processor time pay for 50 s"
    settle(page, 20)
    assert len(server.asked) == polls + 1


def test_a_tab_that_nobody_sees_asks_for_nothing(page: Page, opened: Opened) -> None:
    server = opened(NAMES[:3])
    hide = """(hidden) => {
        Object.defineProperty(document, "hidden", { get: () => hidden, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    settle(page, 16)
    page.evaluate(hide, True)
    polls = len(server.asked)
    settle(page, 200)
    assert len(server.asked) == polls
    with page.expect_response(lambda response: "summaries" in response.url):
        page.evaluate(hide, False)
        settle(page, 2)
    assert len(server.asked) == polls + 1


def test_a_pipeline_that_can_not_be_read_hides_no_other(page: Page, opened: Opened) -> None:
    server = opened(NAMES[:3])
    server.errors = {"p001": "table state can't be opened"}
    settle_until(page, lambda: "table state can't be opened" in page.locator("[data-row=p001]").inner_text())
    expect(page.locator("[data-row=p000]")).to_contain_text("not running")
    expect(page.locator("[data-row=p002]")).to_contain_text("not running")


def test_a_row_links_to_the_dag_that_drives_the_pipeline(page: Page, opened: Opened) -> None:
    server = opened(["a", "b"])
    server.backfills = {"b"}
    settle_until(page, lambda: "Backfill" in page.locator("[data-row=b]").inner_text())
    for name, kind in (("a", "stream"), ("b", "backfill")):
        link = page.locator(f"[data-row={name}] nav").get_by_role("link").first
        expect(link).to_have_text(kind.title())
        expect(link).to_have_attribute("href", re.compile(rf"/dags/{name}__{kind}$"))


def test_a_removed_pipeline_leaves_the_table_and_a_new_one_enters_it(page: Page, opened: Opened) -> None:
    server = opened(["a", "b"])
    server.names = ["b", "c"]
    settle_until(page, lambda: "not running" in "".join(page.locator("[data-row=c]").all_inner_texts()))
    expect(page.locator("[data-row]")).to_have_count(2)


def test_a_pipeline_is_found_by_a_part_of_its_name(page: Page, opened: Opened) -> None:
    server = opened(NAMES)
    page.fill("#find", "19")
    expect(page.locator("[data-row]:visible")).to_have_count(12)
    settle(page, 2)
    assert {name for names in server.asked for name in names} >= {"p019", "p119", "p199"}


def test_the_details_of_a_pipeline_are_shown_below_its_row_while_it_is_open(page: Page, opened: Opened) -> None:
    opened(NAMES[:3])
    page.locator("[data-row=p001] .name").press("Enter")
    settle(page, 2)
    expect(page.locator("[data-pipeline=p001]")).to_contain_text("No snapshot yet")
    expect(page.locator("[data-row=p001] .name")).to_be_focused()
    page.locator("[data-row=p001] .name").click()
    expect(page.locator("[data-pipeline=p001]")).to_have_count(0)
