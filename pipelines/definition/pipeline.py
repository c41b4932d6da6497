"""The pipeline as a value: its source, its key and its computation. Importing it does not import Spark.

The constructor checks names, sizes and combinations. `bind` checks columns and types against the source before anything
is written. Each error names the field, the value and the remedy.
"""

from __future__ import annotations

import posixpath
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal, Protocol, get_args, runtime_checkable

from tidegate.pipelines.definition.fingerprint import LEFT_OUT_AT_DEFAULT
from tidegate.pipelines.definition.names import NAME_RULE, check_name
from tidegate.pipelines.definition.result_types import check_result_types
from tidegate.windowing.compute import TWO_INPUTS, Compute, Join, KeyedProcess, Windows
from tidegate.windowing.errors import IllegalArgument, LostElementsWarning
from tidegate.windowing.functions import KeyedCoProcessFunction, KeyedProcessFunction
from tidegate.windowing.keys import DEFAULT_MAX_PARALLELISM, check_max_parallelism
from tidegate.windowing.time import Duration, Millis, millis, non_negative_millis, positive_millis
from tidegate.windowing.watermarks import WatermarkStrategy

if TYPE_CHECKING:
    from tidegate.pipelines.storage.warehouse import Warehouse
    from tidegate.windowing.columnar import OperatorChoice

TimeUnit = Literal["s", "ms"]
WatermarkRows = Literal["kept", "all"]
OnError = Literal["stop", "reject"]

_COMPUTES = tuple(kind.__name__ for kind in get_args(Compute))
_GIVE_SOURCE = "give a DeltaSource, such as DeltaSource('events', timestamp='at')"
_GIVE_STRATEGY = (
    "give a WatermarkStrategy, such as WatermarkStrategy.for_bounded_out_of_orderness(timedelta(minutes=10))"
)
_GIVE_COLUMNS = "give SQL expressions by the names of the resulting columns, such as {'day': 'to_date(at)'}"


@runtime_checkable
class SourceDescription(Protocol):
    """Description of a source of events. `DeltaSource` is one; other kinds of sources define their own.

    A description is a frozen value that is checked on creation. It is part of a pipeline and of its fingerprint.
    """

    @property
    def table(self) -> str:
        """Name below the warehouse, or an absolute path or URI. Manifests store the position under this name."""

    @property
    def timestamp(self) -> str:
        """Column of the event time."""

    @property
    def zone(self) -> str | None:
        """Time zone of a wall-clock event time; None for other event times."""

    @property
    def unit(self) -> TimeUnit | None:
        """Unit of an integer event time; None for other event times."""

    @property
    def not_before(self) -> datetime | None:
        """Earliest event time that a row may have; None for one millisecond after the beginning of 1970."""

    def open(self, warehouse: Warehouse) -> object:
        """Open the source at its newest version: return a `tidegate.pipelines.sources.base.Source`.

        Args:
            warehouse: the warehouse of the project; `warehouse.path(self.table)` is the place of the source.

        Raises:
            MissingSource: there is no such source yet.
            Refused: it can't be opened; the message names it and the remedy.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One input of a pipeline: its rows, their keys and how their event time advances.

    The fields of a pipeline describe its first or only input. A process function over two inputs and a join get the
    second input as `right=Input(...)`, whose key and watermark default to those of the first input.

    Args:
        source: the table of events.
        key: key columns, one of the same type for each key column of the pipeline; empty for the same names.
        watermark: strategy by which event time advances in a stream; None for the pipeline's strategy.
        watermark_by: column whose values are source partitions, each with its own watermark.
        where: SQL condition; rows for which it is not true are dropped and counted.
        watermark_from: rows whose times move the watermark: "kept" for those that `where` keeps, "all" for all rows.
        columns: derived columns by name, as SQL expressions over the source's columns.
        uses: columns that the function reads; None for all.

    Raises:
        IllegalArgument: a value is not valid; the error names the field.
    """

    source: SourceDescription
    key: tuple[str, ...] = ()
    watermark: WatermarkStrategy | None = None
    watermark_by: str | None = None
    where: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    uses: tuple[str, ...] | None = None
    watermark_from: WatermarkRows = field(default="kept", metadata={LEFT_OUT_AT_DEFAULT: True})

    def __post_init__(self) -> None:
        _check_source("right.source", self.source)
        if self.watermark is not None and not isinstance(self.watermark, WatermarkStrategy):
            raise IllegalArgument("right.watermark", self.watermark, _GIVE_STRATEGY)
        _check_texts("right.", self)

    @property
    def corrects(self) -> bool:
        """True if windows are corrected when rows of the source change (a field of sources that may change)."""
        return getattr(self.source, "changes", None) == "correct"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A pipeline: its source, its key and its computation.

    Args:
        name: letters, digits, `_` and `-`; it names the folder of the pipeline's tables.
        source: the table of events.
        key: columns of the key; elements with equal values share state. Empty for a single group.
        compute: windows with a function of their contents, a process function, or a join.
        watermark: strategy by which event time advances in a stream.
        right: the second input, if `compute` takes two; the fields of the pipeline then describe the left input.
        watermark_by: column whose values are source partitions, each with its own watermark.
        where: SQL condition; rows for which it is not true are dropped and counted.
        watermark_from: rows whose times move the watermark: "kept" for those that `where` keeps, "all" for all rows.
        columns: derived columns by name, as SQL expressions over the source's columns.
        uses: columns that `process`, `reduce` or a user's aggregate reads; None for all.
        null_keys: "reject" rejects a row with a null in its key, "keep" treats null as a value.
        max_ahead: how far a timestamp may be ahead of its commit before the row is rejected.
        max_parallelism: number of key groups, fixed for the pipeline's life.
        parallelism: number of shards; None for one per core.
        checkpoint_interval: longest time between snapshots while only the clock advances.
        dropped: names of aggregates and states in older snapshots, which the next epoch removes from the state.
        on_error: "stop" fails the epoch if your code raises an error; "reject" puts the row in table rejects instead.

    Raises:
        IllegalArgument: a value is not valid; the error names the field.
    """

    name: str
    source: SourceDescription
    key: tuple[str, ...]
    compute: Compute
    watermark: WatermarkStrategy
    right: Input | None = None
    watermark_by: str | None = None
    where: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    uses: tuple[str, ...] | None = None
    null_keys: Literal["reject", "keep"] = "reject"
    max_ahead: Duration = timedelta(hours=1)
    max_parallelism: int = DEFAULT_MAX_PARALLELISM
    parallelism: int | None = None
    checkpoint_interval: Duration = timedelta(minutes=1)
    dropped: tuple[str, ...] = ()
    watermark_from: WatermarkRows = "kept"
    on_error: OnError = "stop"

    def __post_init__(self) -> None:
        try:
            check_name(self.name)
        except (ValueError, TypeError) as error:
            raise IllegalArgument("name", self.name, NAME_RULE) from error
        _check_source("source", self.source)
        if not isinstance(self.watermark, WatermarkStrategy):
            raise IllegalArgument("watermark", self.watermark, _GIVE_STRATEGY)
        if not isinstance(self.compute, Compute):
            raise IllegalArgument(
                "compute", self.compute, f"give one of {', '.join(_COMPUTES)}{_wrapped(self.compute)}"
            )
        _check_texts("", self)
        if isinstance(self.dropped, str):  # type: ignore[unreachable]
            raise IllegalArgument("dropped", self.dropped, f"give a tuple of names: ({self.dropped!r},)")
        object.__setattr__(self, "dropped", tuple(self.dropped))
        self._check_inputs()
        for prefix, part in (("", self), ("right.", self.right)):
            if part is not None and part.watermark is not None:
                _check_strategy(f"{prefix}watermark", part.watermark)
        self._check_places()
        self._check_on_error()
        self._check_changes()
        if not isinstance(self.compute, Windows):
            check_result_types(self.compute)
        elif self.compute.may_lose_data:
            _warn_of_lost_elements(self.name, self.compute)
        if self.null_keys not in ("reject", "keep"):
            raise IllegalArgument("null_keys", self.null_keys, "give 'reject' or 'keep'")
        non_negative_millis(self.max_ahead, "max_ahead")
        positive_millis(self.checkpoint_interval, "checkpoint_interval")
        check_max_parallelism(self.max_parallelism)
        if self.parallelism is not None and not (
            type(self.parallelism) is int and 1 <= self.parallelism <= self.max_parallelism
        ):
            raise IllegalArgument(
                "parallelism",
                self.parallelism,
                f"give a whole number from 1 to max_parallelism ({self.max_parallelism})",
            )

    def _check_on_error(self) -> None:
        """Refuse `on_error="reject"` where an error can't be assigned to one row of the source."""
        if self.on_error not in get_args(OnError):
            raise IllegalArgument("on_error", self.on_error, "give 'stop' or 'reject'")
        if self.on_error == "stop":
            return
        if isinstance(self.compute, TWO_INPUTS):
            raise IllegalArgument(
                "on_error",
                "reject",
                f"{type(self.compute).__name__} has two inputs, and an error may be about a pair of rows: leave "
                "on_error out, and catch the error in your code",
            )
        if isinstance(self.compute, KeyedProcess) and self.compute.time_sorted:
            raise IllegalArgument(
                "on_error",
                "reject",
                "with time_sorted=True a row waits in the state, and its error may come in a later epoch, which does "
                "not read the row: give KeyedProcess(..., time_sorted=False), or catch the error in your code",
            )

    def _check_changes(self) -> None:
        """Refuse `changes="correct"` for windows that can't be corrected. Only some sources have `changes`."""
        for prefix, source in (("", self.source), ("right.", self.right and self.right.source)):
            if getattr(source, "changes", None) == "correct" and (reason := self.uncorrectable) is not None:
                raise IllegalArgument(
                    f"{prefix}source.changes",
                    "correct",
                    f"the pipeline has {reason}. Change that, or give changes='refuse' or changes='ignore'",
                )

    @property
    def uncorrectable(self) -> str | None:
        """Reason why windows can't be corrected when rows of the source change, as a phrase; None if they can."""
        if self.on_error == "reject":
            return "on_error = 'reject', and windows are corrected from all rows of the source"
        return uncorrectable(self.compute, self.watermark, self.watermark_from, self.key, self.columns)

    def _check_places(self) -> None:
        """Refuse a name whose folder would contain a source. `sources.open_source` also compares paths."""
        for number, part in enumerate(self.inputs):
            table = _normal(part.source.table)
            if table == "." or table.split("/")[0] == self.name:
                raise IllegalArgument(
                    "name",
                    self.name,
                    f"{'right.' if number else ''}source.table = {part.source.table!r} would share a folder with the "
                    "pipeline's tables, which a VACUUM of the source would remove: give the pipeline another name",
                )

    def _check_inputs(self) -> None:
        kind, right = type(self.compute).__name__, self.right
        if not isinstance(self.compute, TWO_INPUTS):
            if right is not None:
                raise IllegalArgument(
                    "right", right, f"{kind} has one input: leave it out, or give a CoProcess or a join"
                )
            return
        if not isinstance(right, Input):
            raise IllegalArgument("right", right, f"{kind} has two inputs: give the second, right=Input(source=...)")
        if _normal(right.source.table) == _normal(self.source.table):
            raise IllegalArgument(
                "right.source.table",
                right.source.table,
                "both inputs are the same table, but a pipeline has only one position in a table: use a KeyedProcess, "
                "which sees all rows of the table, or give the second input another table",
            )
        if right.key and len(right.key) != len(self.key):
            raise IllegalArgument("right.key", right.key, f"give one column for each of key = {self.key}")

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The only input, or the left and right inputs, each with its defaults filled in."""
        first = Input(
            source=self.source,
            key=self.key,
            watermark=self.watermark,
            watermark_by=self.watermark_by,
            where=self.where,
            columns=self.columns,
            uses=self.uses,
            watermark_from=self.watermark_from,
        )
        if self.right is None:
            return (first,)
        right = self.right
        return first, replace(right, key=right.key or self.key, watermark=right.watermark or self.watermark)

    @property
    def derived_key(self) -> tuple[str, ...]:
        """Key columns that `columns` derives, so that late and rejected rows don't have them.

        Rows of two inputs have the key columns in addition to those of their sources.
        """
        return tuple(name for name in self.key if name in self.columns) if self.right is None else ()

    @property
    def max_ahead_millis(self) -> Millis:
        """`max_ahead` in milliseconds."""
        return millis(self.max_ahead, "max_ahead")


def _check_source(field: str, source: SourceDescription) -> None:
    """Refuse a value that does not describe a source. If it almost does, the message says what is missing."""
    members = sorted(name for name in vars(SourceDescription) if not name.startswith("_"))
    missing = [name for name in members if isinstance(source, type) or not hasattr(source, name)]
    if missing:
        lacks = "" if missing == members else f"; your own kind of source also needs {', '.join(missing)}"
        raise IllegalArgument(field, source, f"{_GIVE_SOURCE}{lacks}")


def _check_strategy(field: str, strategy: WatermarkStrategy) -> None:
    """Refuse timestamp assigners and alignment: a pipeline reads times from a column, and its source by commits."""
    if strategy.timestamp_assigner is not None:
        raise IllegalArgument(
            field,
            strategy,
            "with_timestamp_assigner has no effect in a pipeline: its event time is the column source.timestamp. Name "
            "another column there, or derive one, columns={'at': 'SQL expression'} and timestamp='at'",
        )
    if strategy.alignment is not None:
        raise IllegalArgument(
            field,
            strategy,
            "with_watermark_alignment has no effect in a pipeline, which reads each source commit by commit: leave it "
            "out. The watermark of a join or co-process is the smaller of its inputs' watermarks anyway",
        )


def _warn_of_lost_elements(name: str, windows: Windows) -> None:
    warnings.warn(
        f"pipeline {name!r}: windows with {windows.trigger!r} may lose elements: a window may be cleaned up before it "
        "fires. Table epochs counts these elements as never_emitted. Give a trigger that fires at the end, such as "
        "AfterWatermark(early=...) or Repeatedly(AfterAny.of(AfterCount(n), AfterWatermark())). If you accept the "
        "loss: warnings.filterwarnings('ignore', category=LostElementsWarning)",
        LostElementsWarning,
        stacklevel=4,
    )


def _normal(table: str) -> str:
    """Return a table's name without dots and doubled slashes, or a URI without trailing slashes."""
    return posixpath.normpath(table) if "://" not in table else table.rstrip("/")


def _check_texts(prefix: str, part: Input | Pipeline) -> None:
    """Check the fields of an input that are column names or SQL, and convert its key to a tuple."""
    if part.watermark_from not in get_args(WatermarkRows):
        raise IllegalArgument(f"{prefix}watermark_from", part.watermark_from, "give 'kept' or 'all'")
    key = _checked_columns(f"{prefix}key", part.key)
    if len(set(key)) != len(key):
        raise IllegalArgument(f"{prefix}key", part.key, "name each key column once")
    object.__setattr__(part, "key", key)
    if part.uses is not None:
        _checked_columns(f"{prefix}uses", part.uses)
    # A column may be named by a blank, but no expression is one.
    if part.watermark_by is not None and not (isinstance(part.watermark_by, str) and part.watermark_by):
        raise IllegalArgument(
            f"{prefix}watermark_by", part.watermark_by, "give the name of one column, or leave it out"
        )
    if part.where is not None and not _is_expression(part.where):
        raise IllegalArgument(
            f"{prefix}where", part.where, "give an SQL condition, such as 'amount > 0', or leave it out"
        )
    if not isinstance(part.columns, Mapping):
        raise IllegalArgument(f"{prefix}columns", part.columns, _GIVE_COLUMNS)
    for name, expression in part.columns.items():
        if not (isinstance(name, str) and name and _is_expression(expression)):
            raise IllegalArgument(f"{prefix}columns", {name: expression}, _GIVE_COLUMNS)


def _is_expression(text: object) -> bool:
    return isinstance(text, str) and bool(text.strip())


def _checked_columns(field: str, names: object) -> tuple[str, ...]:
    if isinstance(names, str):
        raise IllegalArgument(field, names, f"give a tuple of columns: ({names!r},)")
    if not isinstance(names, tuple | list) or not all(isinstance(name, str) and name for name in names):
        raise IllegalArgument(field, names, "give a tuple of column names, such as ('user', 'country')")
    return tuple(names)


def _wrapped(compute: object) -> str:
    """Return advice on wrapping a function that was given instead of a computation; empty for other values."""
    kinds = ((KeyedProcessFunction, "KeyedProcess"), (KeyedCoProcessFunction, "CoProcess"))
    return next((f": {wrapper}(...) of this function" for kind, wrapper in kinds if isinstance(compute, kind)), "")


def has_history(pipeline: Pipeline) -> bool:
    """Return True if a pipeline has windows of event time, whose history can be read again."""
    return isinstance(pipeline.compute, Windows) and pipeline.compute.assigner.is_event_time


def operator_of(pipeline: Pipeline) -> OperatorChoice:
    """Return the operator that computes a pipeline, with the reason."""
    from tidegate.windowing.columnar import OperatorChoice, choose_operator

    choice = choose_operator(pipeline.compute)
    if choice.columnar and pipeline.on_error == "reject":
        return OperatorChoice(False, "with on_error = 'reject' an error of your code must be that of one element")
    return choice


def order_seen_by(compute: Compute) -> str | None:
    """Return a phrase for what makes results depend on more than the set of a window's elements, or None."""
    if isinstance(compute, Join):
        return "a join, whose state lacks the elements that a changed row was joined with"
    if not isinstance(compute, Windows):
        return "a process function, whose results can't be retracted"
    if compute.order_shown_by is not None:
        return compute.order_shown_by
    assigner = compute.assigner
    if assigner.forms_sessions or assigner.array_assignment is not None:
        return None
    return f"assigner {type(assigner).__name__}, whose windows may depend on more than the event time"


def uncorrectable(
    compute: Compute, watermark: WatermarkStrategy, watermark_from: str, key: Collection[str], derived: Collection[str]
) -> str | None:
    """Return the reason why windows can't be corrected when rows of their source change; None if they can.

    Args:
        compute: the computation.
        watermark: strategy by which event time advances.
        watermark_from: rows whose times move the watermark.
        key: the key columns.
        derived: names of derived columns.
    """
    if (reason := order_seen_by(compute)) is not None:
        return reason
    assert isinstance(compute, Windows)
    if watermark.reads_events:
        return "a watermark strategy that reads every event in order"
    if watermark_from != "kept":
        return f"watermark_from = {watermark_from!r}"
    if of_key := [name for name in key if name in derived]:
        return f"key column {of_key[0]!r}, which is derived, so late rows don't have it"
    return None
