"""The documentation site is built without a warning, its links lead somewhere, and it has every public name."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

import tidegate

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BUDGET_SECONDS = 60
"""Seconds of processor time: by the clock it depends on the other work of the machine."""

NEEDS = ("sphinx", "myst_parser", "furo", "sphinxcontrib.mermaid")
needs_generator = pytest.mark.skipif(
    any(find_spec(name) is None for name in NEEDS), reason="needs the extra docs: pip install 'tidegate[docs]'"
)


class Page(HTMLParser):
    """The links of a built page, the files that it loads, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif name == "href" and value and tag == "a":
                self.links.append(value)
            elif value and ((name == "src" and tag != "a") or (name == "href" and tag == "link")):
                self.loads.append(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` builds it."""
    target = tmp_path_factory.mktemp("site")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    build = ["-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going", str(DOCS), str(target)]
    done = subprocess.run([sys.executable, *build], cwd=ROOT, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stdout + done.stderr
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < BUDGET_SECONDS
    return target


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path.read_text()) for path in site.rglob("*.html")}


@needs_generator
def test_the_site_has_a_page_for_each_page_of_docs(site: Path) -> None:
    sources = [path.relative_to(DOCS) for path in (*DOCS.rglob("*.md"), *DOCS.rglob("*.ipynb"))]
    # GitHub's first page of the folder is index.html of the site.
    missing = [
        path for path in sources if str(path) != "README.md" and not (site / path).with_suffix(".html").is_file()
    ]
    assert missing == []


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
def test_the_pages_load_nothing_from_elsewhere_but_the_pictures(pages: dict[Path, Page]) -> None:
    elsewhere = {path.name for path, page in pages.items() for link in page.loads if re.match(r"(https?:)?//", link)}
    assert elsewhere <= {"architecture.html"}, "only its pictures are drawn by a script of Mermaid"


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
