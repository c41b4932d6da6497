"""Progress of a call that runs epochs, reported to a function that may show it in one line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TextIO, TypeAlias


@dataclass(frozen=True, slots=True)
class Progress:
    """A progress message of a run.

    Args:
        pipeline: name of the pipeline.
        text: the text to show.
        is_step: True for a step of an epoch, which the next step replaces; False for a line that stays, such as the one
            of a whole epoch.
        epoch: for a whole epoch, its fields by name, as in `WORK/logs/PIPELINE.epochs.jsonl`; None for other lines.
    """

    pipeline: str
    text: str
    is_step: bool = False
    epoch: Mapping[str, Any] | None = None


OnProgress: TypeAlias = Callable[[Progress], None]


class ProgressLine:
    """Shows progress as tqdm does: steps replace each other in one line, and lines of whole epochs stay.

    Args:
        out: the stream, such as the output of a notebook cell; None for standard error.
    """

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out
        self._width = 0

    def __call__(self, progress: Progress) -> None:
        """Show the newest progress."""
        text = f"{progress.pipeline}: {progress.text}"
        out = self._out or sys.stderr
        out.write(f"\r{text.ljust(self._width)}{'' if progress.is_step else chr(10)}")
        out.flush()
        self._width = len(text) if progress.is_step else 0


def silent(progress: Progress) -> None:
    """Show nothing."""


@dataclass(frozen=True, slots=True)
class Teller:
    """Reports the progress of calls for one pipeline to the caller's function."""

    pipeline: str
    on_progress: OnProgress = silent

    def say(self, text: str, epoch: Mapping[str, Any] | None = None) -> None:
        """Report a line that stays, with its fields if it is about a whole epoch."""
        self.on_progress(Progress(self.pipeline, text, epoch=epoch))

    def step(self, text: str) -> None:
        """Report a step of an epoch."""
        self.on_progress(Progress(self.pipeline, text, is_step=True))
