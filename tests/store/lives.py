"""A project on disk and one in a bucket, with the same source, and the commands of a whole life on them."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.lake import Clock, Lake
from tests.store.server import S3Server
from tidegate.pipelines.definition.config import load_config
from tidegate.pipelines.project.cli import run

MODULE = "pipelines_of_a_life"

CODE = """
from dataclasses import replace
from datetime import timedelta

from tests.lake import session_pipeline
from tests.recovery.arrivals import PIPELINE as hours
from tidegate import AfterCount, AfterWatermark

# By arrays, and, because the trigger counts, by the row operator.
visits = session_pipeline(name="visits", parallelism=2, max_parallelism=8)
visits = replace(visits, compute=replace(visits.compute, trigger=AfterWatermark(early=AfterCount(3))))
"""

MARKS = {
    *(
        "clock",
        "last_commit",
        "processing_time",
        "watermark_lag_ms",
        "emitted_at",
        "started_at",
        "seconds",
        "rows_per_second",
        "run_id",
        "phases",
    ),
    *(
        "path",
        "file",
        "report",
        "docs",
        "validation_result",
        "timing",
        "at",
        "committed_at",
        "created_at",
        "checked_at",
    ),
    *("validation_result", "quiet", "size", "bytes", "files", "time", "check_id"),
}
"""Fields of answers that describe the run and not the data."""

_WITHOUT_ROWS = re.compile(r"(without rows|no rows) for [\d.]+ \w+")

LIFE: tuple[tuple[str, ...], ...] = (
    ("setup",),
    ("backfill", "PIPELINE", "--start", "2024-02-29", "--end", "2024-03-01T04:00:00", "--slice", "14h"),
    ("stream", "PIPELINE", "--available-now", "--max-files-per-epoch", "2"),
    ("savepoints", "create", "PIPELINE", "kept"),
    ("savepoints", "list", "PIPELINE"),
    ("snapshots", "list", "PIPELINE"),
    ("snapshots", "show", "PIPELINE", "--checksums"),
    ("results", "PIPELINE", "--limit", "0", "--view", "all"),
    ("why", "PIPELINE"),
    ("late", "summary", "PIPELINE"),
    ("late", "reopen", "PIPELINE"),
    ("quality", "check", "PIPELINE"),
    ("report", "PIPELINE"),
    ("restore", "PIPELINE", "3"),
    ("stream", "PIPELINE", "--available-now"),
    ("restore", "PIPELINE", "savepoint:kept"),
    ("savepoints", "delete", "PIPELINE", "kept"),
    ("forget", "PIPELINE", "user1", "--yes"),
    ("tables", "optimize", "PIPELINE"),
    ("results", "PIPELINE", "--limit", "0", "--view", "windows"),
    ("tables", "rebuild-windows", "PIPELINE"),
    ("tables", "vacuum", "PIPELINE", "--snapshots", "1", "--days", "0"),
    ("quality", "check", "PIPELINE", "--report"),
    ("runs", "PIPELINE", "--limit", "0", "--stale"),
    ("results", "PIPELINE", "--limit", "0", "--view", "all"),
)
"""The commands, with the name of the pipeline left open."""


@dataclass
class Life:
    """A project in a separate folder, whose warehouse may be in another place.

    Args:
        folder: the project's folder.
        warehouse: as tidegate.toml names it.
        options: storage options in tidegate.toml.
    """

    folder: Path
    warehouse: str = "warehouse"
    options: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        pipelines = "".join(
            f'[pipelines.{name}]\nobject = "{MODULE}:{name}"\nstart = 2024-02-29\n' for name in ("hours", "visits")
        )
        options = "".join(f'{key} = "{value}"\n' for key, value in self.options.items())
        (self.folder / "tidegate.toml").write_text(
            f'engine = "local"\nwarehouse = "{self.warehouse}"\n{pipelines}'
            + (f"[storage_options]\n{options}" if options else "")
        )
        (self.folder / f"{MODULE}.py").write_text(CODE)

    @property
    def file(self) -> Path:
        """The project's tidegate.toml."""
        return self.folder / "tidegate.toml"

    @property
    def lake(self) -> Lake:
        """The project's tables."""
        return Lake(self.folder, Clock(), self.warehouse, self.options)

    def tidegate(self, printed: pytest.CaptureFixture[str], *arguments: str, json_too: bool = True) -> tuple[int, str]:
        """Run a command; return its exit code and everything that it printed."""
        asked = ("--json",) if json_too else ()
        code = run([*arguments, *asked, "--config", str(self.file)])
        shown = printed.readouterr()
        return code, shown.out if code == 0 else shown.out + shown.err

    def answers(
        self, printed: pytest.CaptureFixture[str], pipeline: str, without: Collection[str] = ()
    ) -> Iterator[tuple[str, Any]]:
        """Run the commands of a life, except some, and yield each with its answer, without what identifies the run."""
        for command in LIFE:
            if set(command) & set(without):
                continue
            given = [pipeline if word == "PIPELINE" else word for word in command]
            code, text = self.tidegate(printed, *given)
            assert code == 0, text
            yield " ".join(given), scrubbed(json.loads(text))


def scrubbed(answer: Any) -> Any:
    """Return an answer without the fields that describe the run."""
    if isinstance(answer, dict):
        return {name: scrubbed(value) for name, value in answer.items() if name not in MARKS}
    if isinstance(answer, str):
        return _WITHOUT_ROWS.sub("no rows", answer)
    return [scrubbed(value) for value in answer] if isinstance(answer, list) else answer


def unequal(first: Any, second: Any, place: str = "") -> Iterator[str]:
    """Yield the places at which two answers differ, with both values."""
    if isinstance(first, dict) and isinstance(second, dict) and first.keys() == second.keys():
        for name in first:
            yield from unequal(first[name], second[name], f"{place}.{name}")
    elif isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        for number, pair in enumerate(zip(first, second, strict=True)):
            yield from unequal(*pair, f"{place}[{number}]")
    elif first != second:
        yield f"{place}: {first} is not {second}"


def upload(server: S3Server, folder: Path, bucket: str, key: str) -> None:
    """Copy the files of a folder into a bucket."""
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            server.write(bucket, f"{key}/{file.relative_to(folder)}", file.read_bytes())


@contextmanager
def modules_of_projects() -> Iterator[None]:
    """In this context each project's modules can be imported; they are forgotten at the end."""
    with pytest.MonkeyPatch.context() as planted:
        planted.setattr(sys, "path", [*sys.path])
        planted.delitem(sys.modules, MODULE, raising=False)
        yield
        sys.modules.pop(MODULE, None)


def rows_left(life: Life, pipeline: str) -> dict[str, list[str]]:
    """Return the content of a pipeline's tables, row by row, without what identifies the runs."""
    from tests.recovery.arrivals import outcome

    with pytest.MonkeyPatch.context() as planted:
        planted.syspath_prepend(str(life.folder))
        value = load_config(life.file).load(f"{MODULE}:{pipeline}", "object")
    left = outcome(life.lake, value, ("processing_time", "watermark_lag_ms"))  # type: ignore[arg-type]
    # A position contains the clock of the run.
    return {table: rows for table, rows in left.items() if table != "position"}
