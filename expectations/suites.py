"""The suites of a pipeline: the rules for all windows of its shape, and the pipeline's own suite.

Errors in the pipeline's own suite are found before any row is checked: an expectation that can't be evaluated says
nothing about the data, so it is an error of the suite and not a failed check.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from string import Formatter
from typing import Any, Final, TypeAlias

import great_expectations.expectations as gxe
import pandas as pd
import pyarrow as pa
from great_expectations.exceptions import MetricProviderError
from great_expectations.execution_engine import PandasExecutionEngine
from great_expectations.expectations.registry import get_metric_provider

from tidegate.expectations import unexpected_rows
from tidegate.expectations.invariants import tables, windows
from tidegate.expectations.needs import CORE, NEEDS, Fact, fact_of
from tidegate.expectations.neighbours import NewWindows, Part
from tidegate.expectations.pinned import Pinned, as_frame
from tidegate.expectations.typed import columns_of, fitted, type_faults, typed
from tidegate.pipelines.definition.window_shape import WindowShape
from tidegate.pipelines.errors import UsageError

CRITICAL, WARNING, INFO = "critical", "warning", "info"
"""Critical fails the task and holds back the asset, warning marks the run, and info is only recorded."""


Frames: TypeAlias = Callable[[], Iterable[pd.DataFrame]]
"""A function that yields the rows to check in parts; rows that a rule compares are in the same part."""

Batch: TypeAlias = tuple[Sequence[int], Iterable[Part]]
"""Places of expectations in their suite, and the parts that they are evaluated on."""


@dataclass(frozen=True)
class TableSuite:
    """The expectations for the rows of one table, such as final windows, panes, epochs or files.

    Args:
        table: name of the rows.
        frames: the rows, for suites of tidegate.
        expectations: the expectations.
        of_windows: True if the rows are windows, so that a failing row belongs to a partition.
        own: the rows of one of the pipeline's own suites, for each group of expectations that read them in the same
            way.
        schema: types of these rows.
        waits: what to report for an expectation that had no rows to judge; "" if it is left out.
    """

    table: str
    frames: Frames
    expectations: tuple[Any, ...]
    of_windows: bool = False
    own: Callable[[], Iterable[Batch]] | None = None
    schema: pa.Schema | None = None
    waits: str = ""

    @property
    def is_own(self) -> bool:
        """True if it is one of the pipeline's own suites."""
        return self.own is not None

    def fitted(self, expectation: Any) -> Any:
        """Return an expectation with limits that fit the types of the rows."""
        return expectation if self.schema is None else fitted(expectation, self.schema)

    def batches(self) -> Iterable[Batch]:
        """Return the expectations in groups, each with the rows to evaluate it on."""
        if self.own is not None:
            return self.own()
        return [(range(len(self.expectations)), map(Part, self.frames()))]


def _copies(suite: Any) -> tuple[Any, ...]:
    # An expectation can belong to only one suite in Great Expectations, and the caller may use the suite again.
    return tuple(expectation.copy(deep=True) for expectation in suite.expectations)


def own_suite(name: str, suite: Any, rows: pa.Table) -> TableSuite:
    """Return one of the pipeline's own suites over rows that are not windows, which messages call `name`."""
    copies = _copies(suite)

    def batches() -> Iterator[Batch]:
        for reads in dict.fromkeys(fact_of(each).reads for each in copies):
            places = [place for place, each in enumerate(copies) if fact_of(each).reads == reads]
            yield places, [Part(as_frame(typed(rows, reads)))]

    return TableSuite(f"{name}: {suite.name}", tuple, copies, own=batches, schema=rows.schema)


def windows_suite(name: str, suite: Any, windows: NewWindows) -> TableSuite | None:
    """Return one of the pipeline's own suites over new windows, which messages call `name`.

    Each expectation also gets the older windows that it needs. Return None if nothing is to be judged.
    """
    copies, pinned = _copies(suite), windows.pinned
    if not windows and not any(fact_of(each).needs == "partition" for each in copies):
        return None

    def batches() -> Iterator[Batch]:
        groups: dict[tuple[Fact, tuple[str, ...]], list[int]] = {}
        for place, each in enumerate(copies):
            fact = fact_of(each)
            by = tuple(getattr(each, "key", pinned.key)) if fact.needs == "neighbours" else ()
            groups.setdefault((fact, by), []).append(place)
        for (fact, by), places in groups.items():
            if fact.needs == "neighbours":
                yield places, windows.neighbours(by, fact.reads)
            elif fact.needs == "partition":
                yield places, windows.partitions(fact.reads)
            elif fact.needs == "standing":
                yield places, windows.standing(fact.reads, _named_by([copies[place] for place in places]))
            else:
                yield places, windows.alone(fact.reads)

    return TableSuite(
        f"{name}: {suite.name}",
        tuple,
        copies,
        of_windows=True,
        own=batches,
        schema=pinned.slices.schema,
        waits=f"no {windows.unit} with new windows is complete" if windows else "",
    )


def _named_by(expectations: Sequence[Any]) -> list[str] | None:
    """Return the columns that expectations read; None if they may read any."""
    if not all(type(each) in CORE and not getattr(each, "row_condition", None) for each in expectations):
        return None
    return [name for each in expectations for name in columns_of(each)]


def suites(pinned: Pinned, *own: TableSuite | None) -> list[TableSuite]:
    """Return the suites to run over pinned tables.

    The pipeline's own suites come first, so that an error in them ends the check before anything else is checked.
    """
    checked = [
        TableSuite("final windows", pinned.windows, tuple(_windows(pinned))),
        TableSuite("panes", pinned.panes, tuple(_panes(pinned))),
        _whole(
            "epochs",
            pinned.epochs,
            gxe.ExpectColumnValuesToBeUnique(
                column="epoch", severity=CRITICAL, description="Each epoch was published once."
            ),
            tables.ExpectEventsToBeConserved(severity=CRITICAL),
            tables.ExpectWatermarkNeverToGoBack(severity=CRITICAL),
        ),
        _whole("lineage", pinned.lines, tables.ExpectEpochsToBeOfTheLineage(severity=CRITICAL)),
        _whole(
            "files",
            pinned.files,
            tables.ExpectFilesToBeOfOurCommits(severity=CRITICAL),
            tables.ExpectFilesToKeepTheirRows(severity=CRITICAL),
            # The rows are still the same, but a foreign writer may change rows next time, so this is only a warning.
            tables.ExpectNobodyElseToRewriteFiles(severity=WARNING),
        ),
        _whole(
            "ledger",
            pinned.ledger,
            gxe.ExpectColumnPairValuesToBeEqual(
                column_A="counted",
                column_B="found",
                ignore_row_if="neither",
                severity=CRITICAL,
                description="The tables have as many rows as the epochs counted.",
            ),
        ),
        TableSuite("state", pinned.state, tuple(_state(pinned))),
    ]
    if len(pinned.restored):
        checked.append(_whole("restored state", pinned.restored, tables.ExpectStateToMatchChecksums(severity=CRITICAL)))
    if pinned.differing_windows is not None:
        of_table = tables.ExpectTableToHaveTheWindowsThatStand(severity=CRITICAL)
        checked.append(_whole("table windows", pinned.differing_windows, of_table))
    return [suite for suite in (*own, *checked) if suite is not None and suite.expectations]


def _whole(table: str, rows: pd.DataFrame, *expectations: Any) -> TableSuite:
    return TableSuite(table, lambda: (rows,), expectations)


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
        yield windows.ExpectWindowsToBeAligned(
            size=shape.size, slide=shape.slide, offset=shape.offset, by_epoch=shapes.grids, severity=CRITICAL
        )
        if shapes.one_grid and _explains_sliding(pinned, shape):
            looks_from = pinned.scope.looks_from
            yield windows.ExpectElementsInEverySlidingWindow(
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
        yield windows.ExpectNoSessionInsideAnother(key=key, severity=CRITICAL)
        # In arrival order, an element behind the watermark may open a session next to one that is closed.
        yield windows.ExpectSessionsToLieApart(key=key, severity=CRITICAL if in_event_order else WARNING)
        if shape.gap is not None:
            yield windows.ExpectWindowsToBeAtLeast(length=shape.gap, by_epoch=shapes.gaps, severity=CRITICAL)


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
        column_list=[*key, "window_id", "epoch", "pane", "op"],
        ignore_row_if="never",
        severity=CRITICAL,
        description="No pane exists twice.",
    )
    yield windows.ExpectPanesToBeDense(key=key, severity=CRITICAL)
    yield windows.ExpectOneOnTimePaneBeforeLateOnes(key=key, severity=CRITICAL)
    yield gxe.ExpectColumnPairValuesAToBeGreaterThanB(
        column_A="window_end",
        column_B="window_start",
        ignore_row_if="either_value_is_missing",
        severity=CRITICAL,
        description="A window ends after its start.",
    )
    yield tables.ExpectWindowIdsToNameTheirWindows(is_merging=pinned.shape.is_merging, severity=CRITICAL)
    yield tables.ExpectFinalAtToFitTheBounds(lateness=pinned.shape.lateness, severity=CRITICAL)


def _state(pinned: Pinned) -> Iterator[Any]:
    yield tables.ExpectKeysToHashToTheirGroup(severity=CRITICAL)
    shapes = pinned.shapes
    if shapes is None or not shapes.newest.is_event_time:
        return
    # The timers of a window keep the lateness with which it was opened.
    limits = {"watermark": pinned.manifest.watermark, "lateness": shapes.lateness, "severity": CRITICAL}
    yield tables.ExpectNoStateBehindWatermark(**limits)
    yield tables.ExpectNoTimerOfClosedWindow(**limits)


assert unexpected_rows.PROVIDERS, "the import registers them"

_COMPARES: Final = re.compile(r"\bover\s*\(", re.IGNORECASE)
"""A window function of SQL."""
_MAY_LACK: Final = "expect_column_to_exist"


def check_suite(suite: Any, name: str, schema: pa.Schema, what: str = "final windows") -> None:
    """Check that every expectation of a pipeline's own suite can be evaluated.

    Messages begin with `name`, the suite's field in tidegate.toml, and call the rows `what`; `schema` has their types.

    Raises:
        UsageError: it is not a suite, or one of its expectations lacks a parameter, names a missing column, has limits
            of another type than its column, or can't be evaluated on rows in memory.
    """
    if not hasattr(suite, "expectations"):
        raise UsageError(f"{name}: it is a {type(suite).__name__}, not an ExpectationSuite")
    for expectation in suite.expectations:
        if fault := next(_faults(expectation, schema, what), None):
            raise UsageError(f"{name}: {expectation.expectation_type} (severity {_severity(expectation)}): {fault}")


def _faults(expectation: Any, schema: pa.Schema, what: str) -> Iterator[str]:
    given = {name: getattr(expectation, name) for name in expectation.__fields__}
    for name, value in given.items():
        if name not in ("meta", "rendered_content") and "$PARAMETER" in json.dumps(value, default=str):
            yield f"{name} = {value!r} is a parameter, but checks have no parameters: write the value into the suite"
    if isinstance(query := given.get("unexpected_rows_query"), str):
        yield from _faults_of_query(query, what, declares_needs=hasattr(expectation, "needs"))
    if fact_of(expectation).needs not in NEEDS:
        yield f"needs = {fact_of(expectation).needs!r} is not one of {', '.join(NEEDS)}"
    if expectation.expectation_type != _MAY_LACK:
        yield from _missing_columns(expectation, schema.names, what)
    yield from type_faults(expectation, schema)
    yield from _metrics_without_rows(expectation, schema)


def _faults_of_query(query: str, what: str, declares_needs: bool) -> Iterator[str]:
    if (word := unexpected_rows.first_word(query)) not in ("select", "with", "("):
        yield f"its query {query!r} begins with {word!r}, but a check only reads: give one SELECT ... FROM {{batch}}"
    elif "{batch}" not in query:
        yield f"its query {query!r} does not read the {what.split()[-1]}: select FROM {{batch}}"
    elif {name for _, name, _, _ in Formatter().parse(query)} - {"batch", None}:
        yield f"its query {query!r} has braces that are not {{batch}}: double all other braces"
    elif _COMPARES.search(query) and not declares_needs:
        yield (
            f"its query {query!r} compares rows, but it gets the {what} of one check: declare needs in a subclass, "
            f"such as needs: ClassVar[Needs] = 'neighbours', or 'nothing' if these rows are enough"
        )


def _missing_columns(expectation: Any, columns: Sequence[str], what: str) -> Iterator[str]:
    for column in columns_of(expectation):
        if column not in columns:
            close = get_close_matches(column, columns, 1)
            hint = f"Did you mean {close[0]!r}?" if close else f"There are {', '.join(columns)}"
            yield f"{what} have no column {column!r}. {hint}"


def _metrics_without_rows(expectation: Any, schema: pa.Schema) -> Iterator[str]:
    """Yield the metrics of an expectation that Great Expectations can't compute on rows in memory."""
    rows = as_frame(schema.empty_table())
    engine = PandasExecutionEngine(batch_data_dict={"rows": rows})
    for metric in expectation.get_validation_dependencies(execution_engine=engine).metric_configurations.values():
        try:
            get_metric_provider(metric.metric_name, engine)
        except MetricProviderError:
            yield (
                f"it can't be evaluated on rows in memory, because metric {metric.metric_name} has no implementation "
                "for pandas. "
                "Write the condition as SQL in an UnexpectedRowsExpectation, or as an expectation on columns"
            )


def _severity(expectation: Any) -> str:
    severity = expectation.severity
    return str(getattr(severity, "value", severity) or CRITICAL)
