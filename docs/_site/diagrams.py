"""Diagrams in Mermaid, drawn in the reader's browser by a copy of Mermaid that belongs to the site.

npm brings that copy once; its hash is checked, and `.work` keeps it. A browser that shows the site asks no other host.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import tempfile
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

PACKAGE = "@mermaid-js/tiny@11.17.2"
SHA512 = (
    "3e616bd5ce5c49f35fe409e02cb47df03adbbd1e14e4a783ec8fa14241aa1b9c3955ebb7413e1d1b4aaef5ff7d7299ff"
    "b0a8f65f14412b4abb10bea1afd358fc"
)
"""Hash of the package's archive. A new version needs a new hash: `npm pack PACKAGE`, then `sha512sum`."""

MEMBERS = {"package/dist/mermaid.tiny.js": "mermaid.js", "package/LICENSE": "mermaid-license.txt"}
"""Files of the archive, and their names on the site."""

KEPT = Path(__file__).parents[2] / ".work" / "diagrams" / SHA512[:16]
STATIC = Path(__file__).parent / "static"


class MermaidError(Exception):
    """Mermaid can't be had: the text says why, and the way out."""


class Diagram(nodes.General, nodes.Element):
    """A diagram in the words of Mermaid."""


class MermaidDirective(Directive):
    """Makes a node of a block of Mermaid."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        return [Diagram(code="\n".join(self.content))]


def mermaid(kept: Path, sha512: str = SHA512) -> Path:
    """Return the folder with Mermaid's script and licence; npm brings them if they are not there yet.

    MermaidError if npm is missing, can't get the package, or gets another than the expected one.
    """
    if kept.is_dir():
        return kept
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
        content = Path(folder, "content")
        content.mkdir()
        _unpack(_packed(Path(folder)), sha512, content)
        content.rename(kept)
    return kept


def _packed(folder: Path) -> Path:
    """Let npm download the archive of the package."""
    hint = f"The diagrams of the site need {PACKAGE} once; later builds need neither npm nor a network."
    try:
        done = subprocess.run(["npm", "pack", "--silent", PACKAGE], cwd=folder, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise MermaidError(f"{hint} There is no npm here: install Node.js, and run make docs again.") from error
    archives = list(folder.glob("*.tgz"))
    if done.returncode or len(archives) != 1:
        said = done.stderr.strip() or "npm gave no reason"
        raise MermaidError(f"{hint} npm could not get it: {said}. Run make docs again with a network.")
    return archives[0]


def _unpack(archive: Path, sha512: str, content: Path) -> None:
    """Take the needed files out of an archive whose hash is the expected one."""
    actual = hashlib.sha512(archive.read_bytes()).hexdigest()
    if actual != sha512:
        raise MermaidError(f"{archive.name} has the SHA-512 {actual}, and not {sha512} as docs/_site/diagrams.py says")
    with tarfile.open(archive) as files:
        for member, name in MEMBERS.items():
            file = files.extractfile(member)
            assert file is not None
            (content / name).write_bytes(file.read())


def _visit(translator: Any, node: Diagram) -> None:
    translator.body.append(f'<pre class="mermaid">{escape(node["code"])}</pre>\n')
    raise nodes.SkipNode


def _load(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None) -> None:
    """Let only pages with a diagram load the scripts."""
    if doctree is not None and doctree.next_node(Diagram) is not None:
        app.add_js_file("mermaid.js")
        app.add_js_file("diagrams.js")


def _add_scripts(app: Sphinx) -> None:
    """Give the site both scripts, before it is built: a build that can't have them ends at once."""
    if app.builder.format == "html":
        try:
            scripts = mermaid(Path(app.config.diagrams_from))
        except MermaidError as error:
            # Sphinx itself would add a traceback and ask for a report to its authors.
            sys.exit(f"tidegate: {error}")
        app.config.html_static_path += [str(scripts), str(STATIC)]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register blocks of Mermaid. `diagrams_from` names the folder with Mermaid, which npm fills if it is not there."""
    app.add_config_value("diagrams_from", str(KEPT), "html", str)
    app.add_node(Diagram, html=(_visit, None))
    app.add_directive("mermaid", MermaidDirective)
    app.connect("html-page-context", _load)
    app.connect("builder-inited", _add_scripts)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
