"""The files that user code lies in do not count, and what they say does: processes, places, installed packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FINGERPRINT = "from tidegate.pipelines.definition.fingerprint import fingerprint"

PIPES = """
from dataclasses import dataclass
import helpers
NAMES = {"a", "b", "c"}
@dataclass(frozen=True)
class Mine:
    size: int
    def rate(self, n):
        from helpers import least
        return least(helpers.rate(n)) if n in {"p", "q", ("r", frozenset({"s", "t"}))} else NAMES
made = Mine(3)
"""
HELPERS = """
LEAST = 1
def least(n): return max(n, LEAST)
def rate(n): return n + 1
"""


def told_by_a_process(folder: Path, seed: str, helpers: str = HELPERS) -> str:
    """The fingerprint that a process of its own finds, with the modules in a folder."""
    folder.mkdir()
    (folder / "pipes.py").write_text(PIPES)
    (folder / "helpers.py").write_text(helpers)
    code = f"import pipes\n{FINGERPRINT}\nprint(fingerprint(pipes.made))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONHASHSEED": seed, "PYTHONPATH": f".:{folder}"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_neither_the_process_nor_the_place_of_the_files_counts(tmp_path: Path) -> None:
    """One of the modules has the name of one of Python's."""
    found = {told_by_a_process(tmp_path / f"at{seed}", seed, "\n" * int(seed) + HELPERS) for seed in ("1", "2", "3")}
    assert len(found) == 1
    assert told_by_a_process(tmp_path / "global", "1", HELPERS.replace("n + 1", "n + 2")) not in found
    assert told_by_a_process(tmp_path / "imported", "1", HELPERS.replace("LEAST = 1", "LEAST = 0")) not in found


def test_a_package_that_is_installed_is_followed_only_from_within_itself(tmp_path: Path) -> None:
    """A pipeline may be installed as well; what it uses of other packages is told by name."""
    site = tmp_path / "site-packages"
    for name, text in {
        "ours/__init__.py": "",
        "ours/pipes.py": "import theirs\nfrom ours.tools import rate\nmade = lambda a, b: theirs.rate(rate(a))",
        "ours/tools.py": "def rate(n): return n",
        "theirs/__init__.py": "def rate(n): return n",
    }.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)

    def told() -> str:
        code = f"import ours.pipes\n{FINGERPRINT}\nprint(fingerprint(ours.pipes.made))"
        environment = {"PYTHONPATH": f".:{site}", "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        return done.stdout

    before = told()
    (site / "theirs/__init__.py").write_text("def rate(n): return 2 * n")
    assert told() == before
    (site / "ours/tools.py").write_text("def rate(n): return 3 * n")
    assert told() != before
