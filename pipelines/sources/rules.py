"""Rules that reject a row. Each rule has a reason and two forms, and the rules are checked in order.

The reason of a rejected row is that of the first rule that it breaks. Spark's frames use the SQL form of the rules.
Files that Arrow reads and the users' harness use the Arrow form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.pipelines.definition.event_columns import FIRST_TIME, LAST_TIME, OK, TIME
from tidegate.pipelines.sources.limits import LONGEST_GAP
from tidegate.pipelines.tables import rejects
from tidegate.pipelines.tables.columns import quoted
from tidegate.pipelines.tables.far_times import DAYS, MICROS, far_rows, within
from tidegate.windowing.time import Millis

Int64s: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]

COMMITTED = "__committed"
"""Column of a Spark frame: time against which a row is checked to be ahead, int64 epoch milliseconds."""


@dataclass(frozen=True, slots=True)
class RuleSettings:
    """Settings of the rules of an input.

    Args:
        key: columns in which a null makes a row unusable.
        max_ahead: longest accepted time between a commit and a later event time of its rows, milliseconds.
        gap: column of the gaps of sessions; None if there is none.
        times: columns, with their types, that the computation reads and that have timestamps or dates at any depth.
    """

    key: tuple[str, ...]
    max_ahead: Millis
    gap: str | None
    times: tuple[tuple[str, pa.DataType], ...]


@dataclass(frozen=True, slots=True)
class ArrowRows:
    """Rows that the Arrow form of the rules judges.

    Args:
        times: event times, int64 epoch milliseconds.
        valid: True for each event time that is not null; None if none is null.
        table: columns of the rows. If a column is absent, its values break no rule.
        committed: commit time, int64 epoch milliseconds; None if no row can be ahead.
    """

    times: Int64s
    valid: Bools | None
    table: pa.Table
    committed: Millis | None


class Rule(NamedTuple):
    """Rule that rejects a row. Each form returns None if no row can break the rule.

    Args:
        reason: the reason in table `rejects`.
        sql: returns the SQL condition that is true for a row that breaks the rule.
        arrow: returns True for each row that breaks the rule.
        of_time: True if the rule depends only on the event time.
    """

    reason: str
    sql: Callable[[RuleSettings], str | None]
    arrow: Callable[[RuleSettings, ArrowRows], Bools | None]
    of_time: bool = False


def _null_key(settings: RuleSettings, rows: ArrowRows) -> Bools | None:
    flags: Bools | None = None
    for name in _present(settings.key, rows):
        if rows.table[name].null_count:
            missing = _flags(rows.table[name].is_null())
            flags = missing if flags is None else flags | missing
    return flags


def _null_time(settings: RuleSettings, rows: ArrowRows) -> Bools | None:
    return None if rows.valid is None else ~rows.valid


def _time_out_of_range(settings: RuleSettings, rows: ArrowRows) -> Bools | None:
    times = rows.times
    if not len(times) or (int(times.min()) >= FIRST_TIME and int(times.max()) < LAST_TIME):
        return None
    return (times < FIRST_TIME) | (times >= LAST_TIME)


def _ahead(settings: RuleSettings, rows: ArrowRows) -> Bools | None:
    if rows.committed is None or not len(rows.times):
        return None
    latest = rows.committed + settings.max_ahead
    return rows.times > latest if int(rows.times.max()) > latest else None


def _null_gap(settings: RuleSettings, rows: ArrowRows) -> Bools | None:
    gaps = _gaps(settings, rows)
    return None if gaps is None or not gaps.null_count else _flags(gaps.is_null())


def _gap_out_of_range(settings: RuleSettings, rows: ArrowRows) -> Bools | None:
    gaps = _gaps(settings, rows)
    return None if gaps is None else ~within(gaps, 1, LONGEST_GAP + 1)


def _gaps(settings: RuleSettings, rows: ArrowRows) -> pa.ChunkedArray | None:
    if settings.gap is None or settings.gap not in rows.table.column_names:
        return None
    return rows.table[settings.gap].cast(pa.int64())


def _value_out_of_range(settings: RuleSettings, rows: ArrowRows) -> Bools | None:
    far: Bools | None = None
    for name in _present([name for name, _ in settings.times], rows):
        flags = far_rows(rows.table[name])
        far = flags if far is None else far | flags
    return far


def _value_out_of_range_in_sql(settings: RuleSettings) -> str | None:
    return _any_in_sql([_far_in_sql(quoted(name), kind) for name, kind in settings.times])


def _far_in_sql(value: str, kind: pa.DataType, depth: int = 0) -> str | None:
    """Return the condition that a value is or has a time outside Python's range; None if its type has no times."""
    if pa.types.is_timestamp(kind):
        return _outside_in_sql(f"unix_micros(CAST({value} AS TIMESTAMP))", *MICROS)
    if pa.types.is_date(kind):
        return _outside_in_sql(f"unix_date({value})", *DAYS)
    if pa.types.is_struct(kind):
        return _any_in_sql([_far_in_sql(f"{value}.{quoted(field.name)}", field.type, depth) for field in kind])
    if pa.types.is_map(kind):
        keys = _far_element_in_sql(f"map_keys({value})", kind.key_type, depth)
        return _any_in_sql([keys, _far_element_in_sql(f"map_values({value})", kind.item_type, depth)])
    return _far_element_in_sql(value, kind.value_type, depth) if pa.types.is_list(kind) else None


def _far_element_in_sql(array: str, kind: pa.DataType, depth: int) -> str | None:
    far = _far_in_sql(f"element{depth}", kind, depth + 1)
    return None if far is None else f"exists({array}, element{depth} -> {far})"


def _any_in_sql(conditions: Sequence[str | None]) -> str | None:
    return " OR ".join(condition for condition in conditions if condition is not None) or None


RULES = (
    Rule(
        rejects.NULL_KEY,
        lambda settings: " OR ".join(f"{quoted(name)} IS NULL" for name in settings.key) or None,
        _null_key,
    ),
    Rule(rejects.NULL_TIMESTAMP, lambda settings: f"{quoted(TIME)} IS NULL", _null_time, of_time=True),
    Rule(
        rejects.OUT_OF_RANGE,
        lambda settings: _outside_in_sql(quoted(TIME), FIRST_TIME, LAST_TIME),
        _time_out_of_range,
        of_time=True,
    ),
    Rule(
        rejects.AHEAD,
        # If the commit time is null, the condition is null too, so no row is ahead.
        lambda settings: f"{quoted(TIME)} > {quoted(COMMITTED)} + {settings.max_ahead}",
        _ahead,
        of_time=True,
    ),
    Rule(
        rejects.NULL_GAP,
        lambda settings: None if settings.gap is None else f"{quoted(settings.gap)} IS NULL",
        _null_gap,
    ),
    Rule(
        rejects.GAP_OUT_OF_RANGE,
        lambda settings: None if settings.gap is None else _outside_in_sql(quoted(settings.gap), 1, LONGEST_GAP + 1),
        _gap_out_of_range,
    ),
    Rule(rejects.VALUE_OUT_OF_RANGE, _value_out_of_range_in_sql, _value_out_of_range),
)

OF_TIME = tuple(rule for rule in RULES if rule.of_time)
"""Rules that depend only on the event time."""


def status_in_sql(settings: RuleSettings, rules: Sequence[Rule] = RULES) -> str:
    """Return the SQL expression of a row's status: the reason to reject it, or `ok`.

    The frame must have the columns `__time` and `__committed`; `__committed` is null if no row can be ahead.
    """
    broken = [(rule.reason, condition) for rule in rules if (condition := rule.sql(settings)) is not None]
    return f"CASE {' '.join(f'''WHEN {condition} THEN '{reason}' ''' for reason, condition in broken)}ELSE '{OK}' END"


def rejected(settings: RuleSettings, rows: ArrowRows, rules: Sequence[Rule] = RULES) -> dict[str, Bools]:
    """Return flags of the rejected rows by reason; a reason without rows has no entry."""
    by_reason: dict[str, Bools] = {}
    usable = np.ones(len(rows.times), np.bool_)
    for rule in rules:
        broken = rule.arrow(settings, rows)
        if broken is None or not (broken := broken & usable).any():
            continue
        by_reason[rule.reason] = broken
        usable[broken] = False
    return by_reason


def are_times_usable(settings: RuleSettings, smallest: Millis, largest: Millis, committed: Millis) -> bool:
    """Return True if no event time from `smallest` to `largest`, both included, breaks a rule about event time."""
    bounds = ArrowRows(np.array([smallest, largest]), None, pa.table({}), committed)
    return not rejected(settings, bounds, OF_TIME)


def _present(names: Sequence[str], rows: ArrowRows) -> list[str]:
    return [name for name in names if name in rows.table.column_names]


def _outside_in_sql(value: str, first: int, end: int) -> str:
    return f"{value} < {first} OR {value} >= {end}"


def _flags(column: pa.ChunkedArray) -> Bools:
    return np.asarray(column.to_numpy())
