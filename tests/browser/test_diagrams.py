"""The diagrams of the docs are drawn by the Mermaid from npm, using only the site's files."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from html import escape
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from docs._site.diagrams import STATIC, mermaid

# This is the only page test that needs npm and a network.
pytestmark = [pytest.mark.browser, pytest.mark.long]

DOCS = Path(__file__).parents[2] / "docs"
DIAGRAMS = [
    diagram
    for path in sorted(DOCS.rglob("*.md"))
    for diagram in re.findall(r"^```mermaid\n(.*?)^```$", path.read_text(), re.DOTALL | re.MULTILINE)
]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_diagram_of_the_docs_is_drawn_without_a_network(
    page: Page, keep: Callable[[Page, str], Path], tmp_path: Path, scheme: str
) -> None:
    site = shutil.copytree(mermaid(tmp_path / "mermaid"), tmp_path / "site")
    shutil.copytree(STATIC, site, dirs_exist_ok=True)
    blocks = "".join(f'<pre class="mermaid">{escape(diagram)}</pre>' for diagram in DIAGRAMS)
    scripts = '<script src="mermaid.js"></script><script src="diagrams.js"></script>'
    (site / "index.html").write_text(f'<body data-theme="{scheme}">{blocks}{scripts}</body>')
    page.context.set_offline(True)
    page.goto((site / "index.html").as_uri())
    expect(page.locator("pre.mermaid svg")).to_have_count(len(DIAGRAMS))
    expect(page.locator("pre.mermaid svg[aria-roledescription=error]")).to_have_count(0)
    keep(page, f"diagrams-{scheme}")
