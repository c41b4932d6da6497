"""The sign of life of a stream: a file of its host that says which process runs it, and when its loop last turned.

A probe of Kubernetes, or any other watch of processes on the host, reads it with `tidegate alive`. The loop turns
every second while there is nothing to read, and at each step of an epoch. The lease does not show the same: a thread
of its own renews it.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tidegate.pipelines.errors import TidegateError

_FOLDER = "alive"


@dataclass(frozen=True, slots=True)
class SignOfLife:
    """The sign of one pipeline's stream.

    Args:
        file: the file; its time is that of the last turn of the loop.
        pipeline: name of the pipeline.
    """

    file: Path
    pipeline: str

    @classmethod
    def of(cls, work: Path, pipeline: str) -> SignOfLife:
        """Return the sign of a pipeline in a work folder."""
        return cls(work / _FOLDER / pipeline, pipeline)

    def begin(self) -> None:
        """Write this process into the file. The caller holds the lease."""
        process = psutil.Process()
        # Without a sign, the probe says so; the stream itself needs none.
        with suppress(OSError):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            part = self.file.with_suffix(".part")
            part.write_text(json.dumps({"process": process.pid, "started": process.create_time()}))
            part.replace(self.file)

    def give(self) -> None:
        """Note that the loop turned."""
        with suppress(OSError):
            os.utime(self.file)

    def check(self, within: float, now: float) -> float:
        """Return the seconds since the last turn of the loop.

        Args:
            within: most seconds since then.
            now: the present time, seconds since 1970.

        Raises:
            TidegateError: no stream of the pipeline runs on this host, or its loop has not turned in time.
        """
        try:
            giver = json.loads(self.file.read_text())
            age = now - self.file.stat().st_mtime
        except FileNotFoundError:
            raise TidegateError(
                f"no stream of {self.pipeline} has begun on this host: {self.file} does not exist. A stream writes it "
                "as soon as it has the lease and Spark runs"
            ) from None
        if not _is_running(giver["process"], giver["started"]):
            raise TidegateError(
                f"the stream of {self.pipeline} on this host, process {giver['process']}, has ended; its last sign of "
                f"life is {age:.0f} s old"
            )
        if age > within:
            raise TidegateError(
                f"the stream of {self.pipeline}, process {giver['process']}, gave its last sign of life {age:.0f} s "
                f"ago: it hangs, or one step of its epoch takes longer than --within ({within:.0f} s)"
            )
        return max(age, 0.0)


def _is_running(process: int, started: float) -> bool:
    """Return True if a process of this host runs; after its end its number may be another's."""
    try:
        return abs(psutil.Process(process).create_time() - started) < 1
    except psutil.NoSuchProcess:
        return False
