"""Durations of an epoch's steps, and the epoch log: a file with a JSON line for each epoch of a stream.

A line is written as soon as its epoch is published, for tools that collect logs. In addition to the fields of table
`epochs`, it has the seconds of each step, including publishing.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from tidegate.pipelines.definition.counters import RETRACTED, ROWS_DELETED, ROWS_OUT, filtered, fired
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.failures import with_remedy
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.storage.shared_folder import APPEND, SharedFolder
from tidegate.windowing.time import MAX_TIMESTAMP, MIN_TIMESTAMP, Millis, from_millis

LARGEST = 16 * 1024 * 1024
"""Size of a file in bytes above which the next file is started."""
KEPT = 4
"""Number of older files that are kept."""


_log = logging.getLogger(__name__)


class _Lines(RotatingFileHandler):
    """A handler that follows no link out of the work folder, and raises errors instead of printing tracebacks."""

    def _open(self) -> TextIOWrapper:
        file = Path(self.baseFilename)
        # Another user may own `work`, but the folder of logs in it belongs to Tidegate.
        name = file.relative_to(file.parent.parent).as_posix()
        return TextIOWrapper(SharedFolder(file.parent.parent).open(name, APPEND), encoding="utf-8")

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - named by logging
        raise


@dataclass
class EpochLog:
    """Writes the lines of one run of a pipeline.

    Args:
        file: the file to append them to, in a folder of the work folder.
        wall: returns the current time in UTC.
    """

    file: Path
    wall: Callable[[], datetime] = lambda: datetime.now(UTC)
    _handler: RotatingFileHandler | None = field(default=None, init=False)

    def write(self, manifest: Manifest, phases: dict[str, float]) -> dict[str, Any]:
        """Append the line of an epoch, and return its fields.

        Args:
            manifest: manifest of the epoch.
            phases: seconds by phase: plan, operate, commit, publish.
        """
        line = line_of(manifest, phases) | {"at": self.wall().isoformat(timespec="milliseconds")}
        try:
            if self._handler is None:
                self._handler = _Lines(self.file, maxBytes=LARGEST, backupCount=KEPT, encoding="utf-8")
            self._handler.emit(logging.LogRecord("tidegate", logging.INFO, "", 0, json.dumps(line), None, None))
        except (OSError, Refused) as error:
            # The epoch is published, and no other epoch depends on the line.
            _log.warning("epoch %d can't be added to %s: %s", manifest.epoch, self.file, with_remedy(error))
        return line

    def close(self) -> None:
        """Close the file."""
        if self._handler is not None:
            with suppress(OSError):
                self._handler.close()


def line_of(manifest: Manifest, phases: dict[str, float]) -> dict[str, Any]:
    """Return the fields of an epoch's line. Times are ISO text in UTC; a missing time is null.

    Args:
        manifest: manifest of the epoch.
        phases: seconds by phase: plan, operate, commit, publish.
    """
    counters = manifest.counters
    return {
        "pipeline": manifest.pipeline,
        "epoch": manifest.epoch,
        "timeline": manifest.timeline,
        "kind": manifest.kind,
        "events": counters["events_in"],
        "on_time": counters["on_time"],
        "late": counters["late"],
        "filtered": filtered(counters),
        "fired": fired(counters),
        "retracted": counters[RETRACTED],
        "rows_deleted": counters.get(ROWS_DELETED, 0),
        "rows_out": counters.get(ROWS_OUT),
        "open_windows": counters["open_windows"],
        "watermark": _iso(manifest.watermark),
        "watermark_lag_ms": manifest.watermark_lag,
        "clock": _iso(manifest.processing_time),
        "source_versions": {table: position.version for table, position in manifest.positions.items()},
        "seconds": (seconds := round(sum(phases.values()), 3)),
        "rows_per_second": rate(counters["events_in"], seconds),
        "phases": {name: round(seconds, 3) for name, seconds in phases.items()},
        "run_id": manifest.run_id,
    }


def rate(rows: int, seconds: float) -> int | None:
    """Return rows per second, or None if no time passed."""
    return round(rows / seconds) if seconds > 0 else None


def _iso(time: Millis) -> str | None:
    if not MIN_TIMESTAMP < time < MAX_TIMESTAMP:
        return None
    return from_millis(time).isoformat(timespec="milliseconds")
