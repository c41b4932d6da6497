"""A project in a separate folder, and the command line run on it."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.pipelines.by_hand import ByHand
from tidegate.pipelines.project.cli import run

TOML = """
warehouse = "warehouse"
work = "work"
engine = "local"

[pipelines.sessions]
object = "of_the_project:sessions"
start = 2024-03-01
"""

SPARK_TOML = TOML.replace('engine = "local"', 'engine = "spark"')

CODE = """
from tests.lake import session_pipeline

sessions = session_pipeline()
"""


CORRECTING = "session_pipeline(source=DeltaSource('events', timestamp='at', changes='correct'))"
"""A pipeline whose source's changed rows are corrected."""


@dataclass
class Project:
    """A project with the pipeline `sessions`, and what commands on it print."""

    folder: Path
    printed: pytest.CaptureFixture[str]
    templates: Path | None = None

    @classmethod
    def make(cls, folder: Path, printed: pytest.CaptureFixture[str], templates: Path | None = None) -> Project:
        """Write tidegate.toml and the module with the pipeline."""
        (folder / "tidegate.toml").write_text(TOML)
        (folder / "of_the_project.py").write_text(CODE)
        return cls(folder, printed, templates)

    def rewrite(self, pipeline: str) -> None:
        """Write another version of its code, given the expression that creates the pipeline."""
        sys.modules.pop("of_the_project", None)
        imports = "from tests.lake import hourly_pipeline, session_pipeline, timedelta\nfrom tidegate import *\n"
        code = f"{imports}sessions = {pipeline}\n"
        (self.folder / "of_the_project.py").write_text(code)
        for cache in (self.folder / "__pycache__").glob("of_the_project*"):
            cache.unlink()

    @property
    def by_hand(self) -> ByHand:
        """The project's pipeline, to run epochs of."""
        return ByHand(self.folder, templates=self.templates)

    def tidegate(self, *arguments: str) -> tuple[int, str]:
        """Return the exit code of a command, and everything that it printed."""
        code = run([*arguments, "--config", str(self.folder / "tidegate.toml")])
        told = self.printed.readouterr()
        return code, told.out + told.err

    def says(self, code: int, words: str, *arguments: str) -> str:
        """Check the exit code of a command and words in its output; return the output, its lines joined into one."""
        found, told = self.tidegate(*arguments)
        told = " ".join(told.split())
        assert (found, words in told) == (code, True), told
        return told

    def data(self, *arguments: str) -> Any:
        """Return the JSON of a command that succeeds."""
        code = run([*arguments, "--json", "--config", str(self.folder / "tidegate.toml")])
        told = self.printed.readouterr()
        assert code == 0, told
        return json.loads(told.out)
