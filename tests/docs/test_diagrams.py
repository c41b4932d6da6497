"""The site includes Mermaid: npm gets the package once, and only an archive with the expected hash is accepted."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

pytest.importorskip("sphinx", reason="needs the extra docs: pip install 'tidegate[docs]'")

from docs._site import diagrams
from docs._site.diagrams import MEMBERS, PACKAGE, MermaidError, mermaid

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program npm, alone on the path, that returns the archive next to it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    archive = folder / "package.tgz"
    with tarfile.open(archive, "w:gz") as files:
        for member in MEMBERS:
            file = tmp_path / "member"
            file.write_text(f"content of {member}")
            files.add(file, member)
    program = folder / "npm"
    program.write_text(f'#!/bin/sh\n[ "$*" = "pack --silent {PACKAGE}" ] || exit 1\n/bin/cp {archive} .\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    return folder


def sha512(npm: Path) -> str:
    return hashlib.sha512((npm / "package.tgz").read_bytes()).hexdigest()


def test_the_script_and_its_licence_are_taken_once(npm: Path, tmp_path: Path) -> None:
    kept = mermaid(tmp_path / "work" / "kept", sha512=sha512(npm))
    assert (kept / "mermaid.js").read_text() == "content of package/dist/mermaid.tiny.js"
    assert (kept / "mermaid-license.txt").read_text() == "content of package/LICENSE"
    (npm / "npm").unlink()
    assert mermaid(kept) == kept, "the second build needs no npm"
    assert list((tmp_path / "work").iterdir()) == [kept], "and nothing else is left behind"


def test_an_archive_with_another_hash_is_refused(npm: Path, tmp_path: Path) -> None:
    with pytest.raises(MermaidError, match=rf"package\.tgz has the SHA-512 {sha512(npm)}, and not {diagrams.SHA512}"):
        mermaid(tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def test_a_build_without_npm_says_what_to_install(npm: Path, tmp_path: Path) -> None:
    (npm / "npm").unlink()
    with pytest.raises(MermaidError, match=r"need @mermaid-js/tiny.* once.* no npm here: install Node\.js"):
        mermaid(tmp_path / "kept")


def test_a_build_without_a_network_says_that_it_needs_one_once(npm: Path, tmp_path: Path) -> None:
    (npm / "npm").write_text("#!/bin/sh\necho 'getaddrinfo ENOTFOUND' >&2\nexit 1\n")
    with pytest.raises(MermaidError, match=r"once; .*ENOTFOUND\. Run make docs again with a network"):
        mermaid(tmp_path / "kept")


def test_a_build_shows_the_message_and_no_traceback(npm: Path, tmp_path: Path) -> None:
    (npm / "npm").unlink()
    build = ["-m", "sphinx", "--quiet", "-D", f"diagrams_from={tmp_path / 'kept'}", str(DOCS), str(tmp_path / "site")]
    done = subprocess.run([sys.executable, *build], cwd=DOCS.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("tidegate: ")
    assert line.endswith("There is no npm here: install Node.js, and run make docs again.")
