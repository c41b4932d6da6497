"""Migration of state rows: the format of a snapshot, its comparison with a configuration, and the conversion of rows.

A format is plain JSON, so any table can store it with the rows. The columns are compared by name. Each difference is
either migrated or refused, naming the field.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.windowing.errors import IncompatibleSnapshot
from tidegate.windowing.state.added_fields import only_adds, with_added
from tidegate.windowing.state.rows import (
    DISCARDED,
    HELD,
    KEPT_WHOLE,
    REDUCED,
    REST,
    SLICE,
    WINDOW,
    StateSchema,
    emitted_type,
)

Types: TypeAlias = Mapping[str, str | None]
"""Column names and Arrow types as text; None where a type is inferred from the values."""

_START_ANEW = "Undo the change, or start without a snapshot"


@dataclass(frozen=True, slots=True)
class StateFormat:
    """Format of a snapshot's rows: the types of key, namespace and contents.

    Args:
        key: names and types of the key columns, in order.
        namespace: kind of the rows: time_window, global_window, key or bucket.
        contents: name and type of each contents column.
        trigger_state: name and type of each state that the trigger declares.
        user_state: name and type of each state that user functions declare.
        result: name and type of each result column that retractions repeat. If results are not rows, there is one
            without a name.
    """

    key: Types
    namespace: str
    contents: Types = field(default_factory=dict)
    trigger_state: Types = field(default_factory=dict)
    user_state: Types = field(default_factory=dict)
    result: Types = field(default_factory=dict)

    @classmethod
    def of(cls, schema: StateSchema) -> StateFormat:
        """Return the format of rows with these columns."""
        return cls(
            key=_texts(zip(schema.key.names, schema.key.types, strict=True)),
            namespace=schema.namespace,
            contents=_texts(schema.contents),
            trigger_state=_texts(schema.trigger_state),
            user_state=_texts(schema.user_state),
            result=_result_types(schema.result),
        )

    @classmethod
    def from_json(cls, text: str) -> StateFormat:
        """Return the format that `to_json` wrote."""
        return cls(**json.loads(text))

    def to_json(self) -> str:
        """Return the format as JSON text. Equal formats have equal texts."""
        return json.dumps(asdict(self))

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits of a hash. Rows of formats with equal fingerprints need no migration."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]


class FormatDifference(NamedTuple):
    """A field in which a snapshot (`found`) and a configuration (`expected`) differ; None means absent.

    `part` is the part of the state in words, and `name` the name in it, empty for the whole part.
    """

    part: str
    name: str
    found: object
    expected: object

    @property
    def field(self) -> str:
        """Describe the field."""
        return f"{self.part} {self.name!r}" if self.name else self.part


def differences(old: StateFormat, new: StateFormat) -> Iterator[FormatDifference]:
    """Yield every field in which two formats differ, the key first. An inferred type matches any type."""
    if list(old.key) != list(new.key):
        yield FormatDifference("key columns", "", list(old.key), list(new.key))
    yield from _different("key column", old.key, new.key)
    if old.namespace != new.namespace:
        yield FormatDifference("namespace", "", old.namespace, new.namespace)
    for part in ("contents", "trigger_state", "user_state"):
        yield from _different(part.replace("_", " "), getattr(old, part), getattr(new, part))
    if old.result and new.result:
        yield from _different("result", old.result, new.result)


def taken_over(
    difference: FormatDifference, old: StateFormat, new: StateFormat, drop: Collection[str] = ()
) -> str | None:
    """Describe how a difference is migrated; None if the snapshot can't be migrated.

    The text is empty if the difference follows from another one. `drop` names contents and states that may be dropped.
    """
    if (whole := _of_rest(difference)) is not None:
        # A remainder is added and removed with its accumulators. Accumulators without a remainder are valid as they
        # are.
        goes = whole not in new.contents or _is_left_behind(difference, drop)
        return "" if difference.found is None or goes else None
    if _has_added_fields(difference):
        return f"columns that {_named(difference)} lacks are null for elements that are already kept"
    if difference.found is None:
        return _added(difference, old, new)
    return _dropped(difference, new, drop)


def _named(difference: FormatDifference) -> str:
    """Return the name that the user gave a field, as text."""
    return repr(difference.name.removeprefix(f"{HELD}_" if is_held(difference) else "acc_"))


def _dropped(difference: FormatDifference, new: StateFormat, drop: Collection[str]) -> str | None:
    """Describe how a field that the snapshot has is migrated, like `taken_over`."""
    if difference.expected is not None:
        return None
    if is_held(difference) and HELD in new.contents:
        return f"{_named(difference)} is dropped"
    if not _is_left_behind(difference, drop):
        return None
    return "" if difference.part == "result" else f"{_named(difference)} is dropped"


def _added(difference: FormatDifference, old: StateFormat, new: StateFormat) -> str | None:
    """Describe how a field that the snapshot lacks is migrated, like `taken_over`."""
    name = difference.name.removeprefix("acc_")
    if difference.part == "result" and REDUCED in new.contents:
        # The results of a reduce have the columns of its elements.
        return ""
    if difference.part in ("trigger state", "user state"):
        return f"state {name!r} starts empty"
    if is_held(difference):
        if HELD in old.contents:
            return f"{_named(difference)} is null for elements that are already waiting"
        return "elements now wait for the watermark" if name == HELD else ""
    if _is_added_aggregate(difference, old):
        return f"{name!r} is null for windows that are already open"
    return "" if f"acc_{name}" in new.contents else None


def migrated(rows: pa.Table, old: StateFormat, schema: StateSchema, drop: Collection[str] = ()) -> pa.Table:
    """Convert rows to the columns of this configuration, column by column.

    A new contents column is null for open windows, and so are their results, because a count that begins in the middle
    would be wrong. A new declared state is empty. `drop` names contents and states that may be dropped.

    Raises:
        IncompatibleSnapshot: a field can't be migrated; `field` names it.
    """
    # A table may already have a new column, which newer rows use.
    added = {name for name, _ in schema.contents} - set(old.contents)
    rows = rows.drop_columns([name for name in rows.column_names if name in added])
    new = StateFormat.of(schema)
    for difference in differences(old, new):
        if taken_over(difference, old, new, drop) is None:
            raise IncompatibleSnapshot(difference.field, difference.found, difference.expected, remedy(difference))
        name = difference.name
        if _has_added_fields(difference):
            place, kind = rows.schema.get_field_index(name), dict(schema.contents)[name]
            rows = rows.set_column(place, name, with_added(rows[name], kind))
        elif difference.found is None and _of_rest(difference) is not None:
            rows = rows.append_column(name, pa.nulls(len(rows), dict(schema.contents)[name]))
        elif difference.found is None and difference.part == "contents":
            rows = _with_missing(rows, name, dict(schema.contents)[name])
    return _with_results(rows, schema.result) if old.result != new.result else rows


def _has_added_fields(difference: FormatDifference) -> bool:
    """Return True if the difference is columns that were added to elements which the state keeps as a whole."""
    keeps = difference.name in KEPT_WHOLE or is_held(difference)
    return difference.part == "contents" and keeps and only_adds(difference.found, difference.expected)


def is_held(difference: FormatDifference) -> bool:
    """Return True if a difference is about elements that wait for the watermark."""
    return difference.part == "contents" and f"{difference.name}_".startswith(f"{HELD}_")


def _different(part: str, old: Types, new: Types) -> Iterator[FormatDifference]:
    for name in {**old, **new}:
        if name in old and name in new and None in (old[name], new[name]):
            continue
        if old.get(name, "") != new.get(name, ""):
            yield FormatDifference(
                part,
                name,
                (old[name] or "inferred") if name in old else None,
                (new[name] or "inferred") if name in new else None,
            )


def _is_left_behind(difference: FormatDifference, drop: Collection[str]) -> bool:
    return (f"acc_{difference.name}" if difference.part == "result" else difference.name) in drop


def _is_added_aggregate(difference: FormatDifference, old: StateFormat) -> bool:
    """Return True if the difference is an added named aggregate. Only named aggregates have columns of their own."""
    is_named = difference.part == "contents" and difference.name.startswith("acc_")
    return is_named and any(name.startswith("acc_") for name in old.contents)


def _of_rest(difference: FormatDifference) -> str | None:
    """Return the contents column that this remainder column belongs to, or None if it is not a remainder."""
    is_rest = difference.part == "contents" and difference.name.startswith(f"{REST}acc")
    return difference.name.removeprefix(REST) if is_rest else None


def _with_missing(rows: pa.Table, name: str, kind: pa.DataType | None) -> pa.Table:
    older = pc.is_in(rows["namespace"], pa.array([WINDOW, SLICE, DISCARDED])).to_pylist()
    missing = [
        [*(names or []), name] if is_window else names
        for names, is_window in zip(rows["missing"].to_pylist(), older, strict=True)
    ]
    index = rows.schema.get_field_index("missing")
    rows = rows.append_column(name, pa.nulls(len(rows), kind or pa.null()))
    return rows.set_column(index, "missing", pa.array(missing, pa.list_(pa.string())))


def _with_results(rows: pa.Table, result: pa.DataType | None) -> pa.Table:
    """Convert the panes that may be retracted to the current result columns. New columns are null."""
    index = rows.schema.get_field_index("emitted")
    if index < 0 or not isinstance(result, pa.StructType):
        return rows
    names = [result.field(i).name for i in range(result.num_fields)]
    panes = [
        emitted
        and [{**pane, "value": pane["value"] and {name: pane["value"].get(name) for name in names}} for pane in emitted]
        for emitted in rows["emitted"].to_pylist()
    ]
    return rows.set_column(index, "emitted", pa.array(panes, emitted_type(result)))


def remedy(difference: FormatDifference) -> str:
    """Return advice about a difference that can't be migrated."""
    if is_held(difference) and difference.expected is None:
        return f"Elements that wait for the watermark would be lost: keep time_sorted=True. {_START_ANEW}"
    if difference.part in ("contents", "trigger state", "user state") and difference.expected is None:
        return f"Name {difference.name!r} in dropped, or keep computing it"
    if difference.part.startswith("key"):
        return f"A different key has different hashes, so its rows would be in other key groups. {_START_ANEW}"
    return _START_ANEW


def _result_types(result: pa.DataType | None) -> Types:
    if isinstance(result, pa.StructType):
        return {result.field(i).name: str(result.field(i).type) for i in range(result.num_fields)}
    return {} if result is None else {"": str(result)}


def _texts(columns: Any) -> dict[str, str | None]:
    return {name: None if kind is None else str(kind) for name, kind in columns}
