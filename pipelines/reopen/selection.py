"""Which late rows are reopened, and which pipelines can be: those whose windows depend on the set of their elements."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.errors import Refused, UsageError
from tidegate.windowing.compute import CoProcess, KeyedProcess, Windows
from tidegate.windowing.time import Millis


@dataclass(frozen=True, slots=True)
class Selection:
    """Late rows by the window that they would have gone to; by default all of them.

    Args:
        key: texts of the key columns' values, in order; None for every key.
        start: windows that begin at or after it, int64 epoch milliseconds.
        end: and before it.

    Raises:
        UsageError: the span is empty.
    """

    key: tuple[str, ...] | None = None
    start: Millis | None = None
    end: Millis | None = None

    def __post_init__(self) -> None:
        if self.start is not None and self.end is not None and self.start >= self.end:
            raise UsageError("no window begins in that span: give an --end after --start")


def check_reopenable(pipeline: Pipeline) -> Windows:
    """The windows of a pipeline whose late rows can be reopened.

    Raises:
        Refused: their results depend on the order of arrival, which is gone, or on an assigner of the user's own.
    """
    windows = pipeline.compute
    if isinstance(windows, KeyedProcess | CoProcess):
        raise Refused(
            f"late rows of pipeline {pipeline.name!r} can't be reopened: its function went on without them, and "
            "nothing takes its results back. Give its watermark strategy a larger bound, or backfill it under another "
            "name"
        )
    if not isinstance(windows, Windows):
        raise Refused(
            f"late rows of pipeline {pipeline.name!r} can't be reopened: it is a join, and what they would have met is "
            "gone. Give its watermark strategy a larger bound, or backfill it under another name"
        )
    reason, assigner = windows.order_shown_by, windows.assigner
    if reason is None:
        if assigner.forms_sessions or assigner.array_assignment is not None:
            return windows
        reason = f"assigner {type(assigner).__name__}, whose windows may depend on more than a time"
    raise Refused(
        f"late rows of pipeline {pipeline.name!r} can't be reopened: it has {reason}, so a window's elements alone "
        "do not tell its result. Give its windows a longer allowed_lateness, or backfill it under another name"
    )
