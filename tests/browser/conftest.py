"""A headless Chromium for the tests that open pages; screenshots are kept as output of the run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, StorageState, sync_playwright

SCREENSHOTS = Path(__file__).parent.parent.parent / ".work" / "screenshots"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The system's Chromium. Without it the test is skipped, but fails in CI, which installs it. It is closed with its
    module, because its event loop would keep other tests from having their own.
    """
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        missing = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        missing("no Chromium here: apt-get install chromium")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def logged_in() -> StorageState | None:
    """Cookies and storage of a login, for the modules that need one."""
    return None


@pytest.fixture
def page(browser: Browser, logged_in: StorageState | None) -> Iterator[Page]:
    """A page on which nothing may go wrong: no console errors, no failed requests, nothing from other hosts."""
    page = browser.new_page(viewport={"width": 1280, "height": 900}, storage_state=logged_in)
    errors: list[str] = []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    # Requests that are still loading when the page is left are aborted.
    page.on(
        "requestfailed",
        lambda request: (
            None if request.failure == "net::ERR_ABORTED" else errors.append(f"{request.url}: {request.failure}")
        ),
    )
    yield page
    page.close()
    assert errors == []


@pytest.fixture
def keep() -> Callable[[Page, str], Path]:
    """Save a screenshot of a whole page under a name."""

    def screenshot(page: Page, name: str) -> Path:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        path = SCREENSHOTS / f"{name}.png"
        page.screenshot(path=path, full_page=True)
        return path

    return screenshot
