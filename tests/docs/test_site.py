"""The documentation site builds without warnings, its links work, and it contains every public name. It is built only
in `make test-long`; tests/test_docs.py always checks the links between pages.
"""

from __future__ import annotations

import re
import resource
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

import tidegate

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BUDGET_SECONDS = 60
"""Seconds of processor time: wall time would depend on the other work of the machine."""

pytestmark = pytest.mark.slow

NEEDS = ("sphinx", "myst_parser", "furo")
generator_is_missing = pytest.mark.skipif(
    any(find_spec(name) is None for name in NEEDS), reason="needs the extra docs: pip install 'tidegate[docs]'"
)


def needs_generator(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test of the built site only where it can be built, and only in the long form: the build takes half a
    minute.
    """
    return pytest.mark.long(generator_is_missing(test))


ADDRESS = r"(?:https?:)?//"
LOADING_CSS = re.compile(rf"""(?:url\(|@import)\s*["']?\s*{ADDRESS}[^"')]*""")
LOADING_CODE = re.compile(
    rf"""(?:\b(?:from|import|importScripts|fetch|Worker|open)|\.(?:src|href)\s*=)\s*\(?[^"'`)]{{0,20}}["'`]{ADDRESS}[^"'`]*"""
)


class Page(HTMLParser):
    """The links of a built page, the addresses that a browser loads to show it, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self._within = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._within = tag
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif name == "href" and value and tag == "a":
                self.links.append(value)
            elif name == "srcset" and value:
                self.loads += [part.split()[0] for part in value.split(",")]
            elif name == "style" and value:
                self.loads += loaded_by_style(value)
            elif value and (
                name in ("src", "data", "poster", "xlink:href") or (name == "href" and tag in LOADING_TAGS)
            ):
                self.loads.append(value)

    def handle_endtag(self, tag: str) -> None:
        self._within = ""

    def handle_data(self, data: str) -> None:
        if self._within == "style":
            self.loads += loaded_by_style(data)
        elif self._within == "script":
            self.loads += loaded_by_code(data)

    def outside(self) -> list[str]:
        """Return the loads that another host would answer."""
        return [load for load in self.loads if re.search(ADDRESS, load)]


LOADING_TAGS = ("link", "image", "use", "base")


def loaded_by_style(text: str) -> list[str]:
    """Return the external addresses that a style sheet loads."""
    return LOADING_CSS.findall(text)


def loaded_by_code(text: str) -> list[str]:
    """Return the external addresses that a script loads, immediately or later, as far as its text shows."""
    return LOADING_CODE.findall(text)


@pytest.mark.long
@generator_is_missing
def test_no_page_or_docstring_has_a_fault_that_the_site_would_show(tmp_path: Path) -> None:
    """The builder that writes nothing reads the pages and imports the code as the site does, in a third of the time."""
    build = ["-m", "sphinx", "--quiet", "--builder", "dummy", str(DOCS), str(tmp_path)]
    done = subprocess.run([sys.executable, *build], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (0, "")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as `make docs` does, but without Mermaid, which would need a network."""
    target = tmp_path_factory.mktemp("site")
    mermaid = tmp_path_factory.mktemp("mermaid")
    (mermaid / "mermaid.js").write_text("// in place of Mermaid")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    build = ["-m", "sphinx", "--quiet", "-D", f"diagrams_from={mermaid}", str(DOCS), str(target)]
    done = subprocess.run([sys.executable, *build], cwd=ROOT, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    warnings = [line for line in done.stderr.splitlines() if line.strip()]
    assert (done.returncode, warnings) == (0, []), done.stdout + done.stderr
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < BUDGET_SECONDS
    return target


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path.read_text()) for path in site.rglob("*.html")}


@needs_generator
def test_the_site_has_a_page_for_each_page_of_docs(site: Path) -> None:
    sources = [path.relative_to(DOCS) for path in (*DOCS.rglob("*.md"), *DOCS.rglob("*.ipynb"))]
    # GitHub shows README.md as the folder's first page; in the site that page is index.html.
    missing = {
        path for path in sources if str(path) != "README.md" and not (site / path).with_suffix(".html").is_file()
    }
    assert missing == set()


@needs_generator
def test_every_link_of_the_site_leads_to_a_page_and_a_place_on_it(pages: dict[Path, Page]) -> None:
    broken = []
    for path, page in pages.items():
        for link in page.links:
            if re.match(r"[a-z]+:", link):
                continue
            file, anchor = urldefrag(link)
            target = (path.parent / unquote(file)).resolve() if file else path
            if not target.exists() or (anchor and target in pages and unquote(anchor) not in pages[target].anchors):
                broken.append(f"{path.name}: {link}")
    assert broken == []


@needs_generator
def test_the_pages_load_nothing_from_elsewhere(site: Path, pages: dict[Path, Page]) -> None:
    outside = {path.name: page.outside() for path, page in pages.items() if page.outside()}
    for path in site.rglob("*.css"):
        outside |= {path.name: loads} if (loads := loaded_by_style(path.read_text())) else {}
    for path in site.rglob("*.js"):
        outside |= {path.name: loads} if (loads := loaded_by_code(path.read_text())) else {}
    assert outside == {}


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://cdn.example/a.js"></script>',
        '<script type="module">import mermaid from "https://cdn.example/a.mjs";</script>',
        '<script>import("//cdn.example/a.mjs")</script>',
        '<link rel="stylesheet" href="//fonts.example/a.css">',
        '<style>@import "https://fonts.example/a.css";</style>',
        "<style>@font-face { src: url(https://fonts.example/a.woff2) }</style>",
        "<p style=\"background: url('https://pictures.example/a.png')\"></p>",
        '<img src="https://pictures.example/a.png">',
        '<img src="a.png" srcset="a.png 1x, https://pictures.example/a.png 2x">',
        '<object data="http://pictures.example/a.svg"></object>',
    ],
)
def test_a_page_that_loads_from_elsewhere_is_found(text: str) -> None:
    assert len(Page(text).outside()) == 1


def test_a_link_for_humans_is_no_load() -> None:
    page = Page('<a href="https://example.org">there</a><script>const home = "https://example.org";</script>')
    assert page.links == ["https://example.org"]
    assert page.outside() == []


@needs_generator
def test_only_pages_with_a_diagram_load_the_script_that_draws_it(site: Path, pages: dict[Path, Page]) -> None:
    drawing = {path.name for path, page in pages.items() if any("mermaid.js" in load for load in page.loads)}
    assert drawing == {"architecture.html", "the-life-of-an-epoch.html"}
    assert (site / "_static" / "mermaid.js").is_file()
    assert (site / "_static" / "diagrams.js").is_file()


@needs_generator
def test_the_reference_has_the_docstrings_and_the_notebook_its_outputs(site: Path) -> None:
    windows = (site / "reference" / "windows.html").read_text()
    assert 'id="tidegate.EventTimeSessionWindows"' in windows
    assert "milliseconds" in windows
    notebook = (site / "guide" / "a-session-window.html").read_text()
    assert "on_time" in notebook
    assert "PipelineHarness" in notebook


def test_every_public_name_has_its_place_in_the_reference() -> None:
    text = "\n".join(path.read_text() for path in (DOCS / "reference").glob("*.md"))
    names = re.findall(r"^\.\. auto(?:class|function):: tidegate\.(\w+)$", text, re.MULTILINE)
    assert sorted(names) == sorted(tidegate.__all__)


def test_every_page_is_in_the_contents_of_the_site() -> None:
    index = (DOCS / "index.md").read_text()
    listed = set(re.findall(r"^([a-z-]+/?[\w*/-]*)$", index, re.MULTILINE))
    pages = {
        path.relative_to(DOCS).with_suffix("").as_posix() for path in (*DOCS.rglob("*.md"), *DOCS.rglob("*.ipynb"))
    }
    pages -= {"index", "README"}
    assert sorted(page for page in pages if page not in listed and not page.startswith("decisions/")) == []
    assert "decisions/*" in listed
