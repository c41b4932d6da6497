"""Selection of the late rows to reopen, and the check that results depend only on the set of a window's elements."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.errors import Refused, UsageError
from tidegate.windowing.compute import CoProcess, KeyedProcess, Windows
from tidegate.windowing.time import Millis


@dataclass(frozen=True, slots=True)
class Selection:
    """Selection of late rows by their key and by the window that they would have gone to. The default selects all.

    Args:
        key: texts of the key columns' values, in order; None for every key.
        start: smallest start of the windows, int64 epoch milliseconds; None for no limit.
        end: limit of the window starts, exclusive, int64 epoch milliseconds; None for no limit.

    Raises:
        UsageError: the span is empty.
    """

    key: tuple[str, ...] | None = None
    start: Millis | None = None
    end: Millis | None = None

    def __post_init__(self) -> None:
        if self.start is not None and self.end is not None and self.start >= self.end:
            raise UsageError("--end is not after --start, so no window begins in between: give a later --end")


def check_reopenable(pipeline: Pipeline) -> Windows:
    """Return the windows of a pipeline after a check that its late rows can be reopened.

    Raises:
        Refused: the results depend on the order of arrival, which is lost, or on an assigner of the user's own.
    """
    windows = pipeline.compute
    if isinstance(windows, KeyedProcess | CoProcess):
        raise Refused(
            f"late rows of pipeline {pipeline.name!r} can't be reopened: its function has already continued without "
            "them, and its results can't be retracted. Give its watermark strategy a larger bound, or backfill it "
            "under another name"
        )
    if not isinstance(windows, Windows):
        raise Refused(
            f"late rows of pipeline {pipeline.name!r} can't be reopened: it is a join, and the elements that they "
            "would have met are gone from its state. Give its watermark strategy a larger bound, or backfill it under "
            "another name"
        )
    reason, assigner = windows.order_shown_by, windows.assigner
    if reason is None:
        if assigner.forms_sessions or assigner.array_assignment is not None:
            return windows
        reason = f"assigner {type(assigner).__name__}, whose windows may depend on more than a time"
    raise Refused(
        f"late rows of pipeline {pipeline.name!r} can't be reopened: it has {reason}, so the result of a window "
        "depends on more than its elements. Give its windows a longer allowed_lateness, or backfill it under another "
        "name"
    )
