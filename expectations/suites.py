"""The suites of a pipeline: the rules for all windows of its shape, and the pipeline's own suite."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import great_expectations.expectations as gxe
import pandas as pd

from tidegate.expectations import invariants
from tidegate.expectations.pinned import Pinned
from tidegate.pipelines.definition.window_shape import WindowShape

CRITICAL, WARNING, INFO = "critical", "warning", "info"
"""Critical fails the task and holds the asset back, warning marks the run, info is recorded."""


Parts: TypeAlias = Callable[[], Iterable[pd.DataFrame]]
"""A function that yields the rows to check in parts; rows that a rule compares are in the same part."""


@dataclass(frozen=True)
class TableSuite:
    """The expectations for the rows of one table.

    Args:
        table: name of the rows: final windows, panes, epochs, lines, files, ledger or state.
        parts: the rows to check.
        expectations: expectations of Great Expectations.
        is_own: True for the pipeline's own suite.
    """

    table: str
    parts: Parts
    expectations: tuple[Any, ...]
    is_own: bool = False


def suites(pinned: Pinned, pipeline_suite: Any = None) -> list[TableSuite]:
    """Return the suites to run over pinned tables.

    Args:
        pinned: the tables.
        pipeline_suite: the pipeline's own ExpectationSuite, for the windows that became final since the newest check
            that passed. If there are none it is left out: a mean or a number of rows means nothing without rows.
    """
    checked = [
        TableSuite("final windows", pinned.windows, tuple(_windows(pinned))),
        TableSuite("panes", pinned.panes, tuple(_panes(pinned))),
        TableSuite("epochs", _whole(pinned.epochs), tuple(_epochs())),
        TableSuite("lines", _whole(pinned.lines), tuple(_lines())),
        TableSuite("files", _whole(pinned.files), tuple(_files())),
        TableSuite("ledger", _whole(pinned.ledger), tuple(_ledger())),
        TableSuite("state", pinned.state, tuple(_state(pinned))),
        TableSuite("restored state", _whole(pinned.restored), tuple(_restored(pinned))),
    ]
    fresh = pinned.fresh if pipeline_suite is not None and pinned.fresh_windows else None
    if fresh is not None and len(fresh):
        # Great Expectations lets an expectation belong to one suite only, and the caller may use the suite again.
        copies = tuple(expectation.copy(deep=True) for expectation in pipeline_suite.expectations)
        new_windows = TableSuite(f"new final windows: {pipeline_suite.name}", lambda: (fresh,), copies, is_own=True)
        # It goes first, so that an error of the suite itself ends the check before anything is judged.
        checked.insert(0, new_windows)
    return [suite for suite in checked if suite.expectations]


def _whole(rows: pd.DataFrame) -> Parts:
    return lambda: (rows,)


def _windows(pinned: Pinned) -> Iterator[Any]:
    shapes, key = pinned.shapes, pinned.key
    if shapes is None:
        return
    shape = shapes.newest
    yield gxe.ExpectCompoundColumnsToBeUnique(
        column_list=[*key, "window_start", "window_end"],
        ignore_row_if="never",
        severity=CRITICAL,
        description="Each window has one row.",
    )
    if shape.size is not None and shape.slide is not None:
        yield invariants.ExpectWindowsToBeAligned(
            size=shape.size, slide=shape.slide, offset=shape.offset, by_epoch=shapes.grids, severity=CRITICAL
        )
        if shapes.one_grid and _explains_sliding(pinned, shape):
            looks_from = pinned.scope.looks_from
            yield invariants.ExpectElementsInEverySlidingWindow(
                key=key,
                count=shape.count,
                size=shape.size,
                slide=shape.slide,
                offset=shape.offset,
                watermark=pinned.manifest.watermark,
                lateness=shape.lateness,
                since=None if looks_from is None else looks_from - shape.size,
                severity=CRITICAL,
            )
    if shape.is_merging:
        in_event_order = pinned.manifest.order == "event"
        yield invariants.ExpectNoSessionInsideAnother(key=key, severity=CRITICAL)
        # In arrival order an element behind the watermark may open a session beside one that is closed.
        yield invariants.ExpectSessionsToLieApart(key=key, severity=CRITICAL if in_event_order else WARNING)
        if shape.gap is not None:
            yield invariants.ExpectWindowsToBeAtLeast(length=shape.gap, by_epoch=shapes.gaps, severity=CRITICAL)


def _explains_sliding(pinned: Pinned, shape: WindowShape) -> bool:
    multiplicity = shape.multiplicity
    return (
        shape.count is not None
        and not shape.may_lose_data
        and multiplicity is not None
        and multiplicity > 1
        and pinned.manifest.order == "event"
        and shape.is_event_time
    )


def _panes(pinned: Pinned) -> Iterator[Any]:
    key = pinned.key
    if pinned.shape is None:
        return
    yield gxe.ExpectCompoundColumnsToBeUnique(
        column_list=[*key, "window_id", "pane", "op"],
        ignore_row_if="never",
        severity=CRITICAL,
        description="No pane exists twice.",
    )
    yield invariants.ExpectPanesToBeDense(key=key, severity=CRITICAL)
    yield invariants.ExpectOneOnTimePaneBeforeLateOnes(key=key, severity=CRITICAL)
    yield gxe.ExpectColumnPairValuesAToBeGreaterThanB(
        column_A="window_end",
        column_B="window_start",
        ignore_row_if="either_value_is_missing",
        severity=CRITICAL,
        description="A window ends after its start.",
    )
    yield invariants.ExpectWindowIdsToNameTheirWindows(is_merging=pinned.shape.is_merging, severity=CRITICAL)
    yield invariants.ExpectFinalAtToFitTheBounds(lateness=pinned.shape.lateness, severity=CRITICAL)


def _epochs() -> Iterator[Any]:
    yield gxe.ExpectColumnValuesToBeUnique(
        column="epoch", severity=CRITICAL, description="Each epoch was published once."
    )
    yield invariants.ExpectEventsToBeConserved(severity=CRITICAL)
    yield invariants.ExpectWatermarkNeverToGoBack(severity=CRITICAL)


def _lines() -> Iterator[Any]:
    yield invariants.ExpectEpochsToBeOfTheLine(severity=CRITICAL)


def _files() -> Iterator[Any]:
    yield invariants.ExpectFilesToBeOfOurCommits(severity=CRITICAL)
    yield invariants.ExpectFilesToKeepTheirRows(severity=CRITICAL)
    # The rows are still the same, but a foreign writer may change rows the next time: only a warning.
    yield invariants.ExpectNobodyElseToRewriteFiles(severity=WARNING)


def _ledger() -> Iterator[Any]:
    yield gxe.ExpectColumnPairValuesToBeEqual(
        column_A="counted",
        column_B="found",
        ignore_row_if="neither",
        severity=CRITICAL,
        description="The tables have as many rows as the epochs counted.",
    )


def _state(pinned: Pinned) -> Iterator[Any]:
    yield invariants.ExpectKeysToHashToTheirGroup(severity=CRITICAL)
    shapes = pinned.shapes
    if shapes is None or not shapes.newest.is_event_time:
        return
    # The timers of a window keep the lateness by which it was opened.
    limits = {"watermark": pinned.manifest.watermark, "lateness": shapes.lateness, "severity": CRITICAL}
    yield invariants.ExpectNoStateBehindWatermark(**limits)
    yield invariants.ExpectNoTimerOfClosedWindow(**limits)


def _restored(pinned: Pinned) -> Iterator[Any]:
    if len(pinned.restored):
        yield invariants.ExpectStateToMatchChecksums(severity=CRITICAL)
