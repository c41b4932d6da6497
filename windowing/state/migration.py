"""What a snapshot was taken with, whether a configuration can go on from it, and the steps that make it fit.

A format is plain JSON, so that it can lie beside the rows in any table. Rows of an older version go
through one step for each version, then columns are compared by name: what can't be taken over is
refused with the field, what can be is.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.windowing.errors import IncompatibleSnapshot
from tidegate.windowing.state.rows import DISCARDED, FORMAT_VERSION, HELD, REST, WINDOW, StateSchema, emitted_type

Types: TypeAlias = Mapping[str, str | None]
"""Column names and Arrow types as text; None where a type is inferred from the values."""

Step: TypeAlias = Callable[[pa.Table], pa.Table]

STEPS: Mapping[int, Step] = {}
"""How rows of a version become those of the next one, by version. There is one version so far."""

_START_ANEW = "Take the change back, or start without a snapshot"


@dataclass(frozen=True, slots=True)
class StateFormat:
    """What the rows of a snapshot are: version, and the types of key, namespace and contents.

    Args:
        key: names and types of the key columns, in order.
        namespace: what the rows are of: time_window, global_window, key or bucket.
        contents: name and type of each contents column.
        trigger_state: name and type of each state that the trigger declares.
        user_state: name and type of each state that user functions declare.
        result: name and type of each result column that withdrawals repeat; one without a name if it is no row.
        version: of the state rows.
    """

    key: Types
    namespace: str
    contents: Types = field(default_factory=dict)
    trigger_state: Types = field(default_factory=dict)
    user_state: Types = field(default_factory=dict)
    result: Types = field(default_factory=dict)
    version: int = FORMAT_VERSION

    @classmethod
    def of(cls, schema: StateSchema) -> StateFormat:
        """The format of rows with these columns."""
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
        """The format that `to_json` wrote."""
        return cls(**json.loads(text))

    def to_json(self) -> str:
        """As JSON text, the same for equal formats."""
        return json.dumps(asdict(self))

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits: equal for formats between which nothing has to be migrated."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]


class Difference(NamedTuple):
    """A field in which a snapshot and a configuration differ; None where one of them has nothing."""

    field: str
    found: object
    expected: object


def differences(found: StateFormat, expected: StateFormat) -> Iterator[Difference]:
    """Every field in which two formats differ, the key first. A type that is inferred equals any."""
    if list(found.key) != list(expected.key):
        yield Difference("key columns", list(found.key), list(expected.key))
    yield from _different("key column", found.key, expected.key)
    if found.namespace != expected.namespace:
        yield Difference("namespace", found.namespace, expected.namespace)
    for part in ("contents", "trigger_state", "user_state"):
        yield from _different(part.replace("_", " "), getattr(found, part), getattr(expected, part))
    if found.result and expected.result:
        yield from _different("result", found.result, expected.result)


def taken_over(
    difference: Difference, found: StateFormat, expected: StateFormat, drop: Collection[str] = ()
) -> str | None:
    """How a difference is taken over, in words, empty where it follows from another; None where it can't be.

    Args:
        difference: one of those between the formats.
        found: the format of a snapshot.
        expected: that of a configuration.
        drop: contents and states that may be left behind.
    """
    if (whole := _of_rest(difference)) is not None:
        # It comes with the accumulators, and goes with them; without it they go on as what they are.
        goes = whole not in expected.contents or _is_dropped(difference, drop)
        return "" if difference.found is None or goes else None
    name = _name(difference).removeprefix("acc_")
    if difference.found is not None:
        if is_held(difference) and difference.expected is None and HELD in expected.contents:
            return f"{name.removeprefix(f'{HELD}_')!r} is left behind"
        if difference.expected is not None or not _is_dropped(difference, drop):
            return None
        return "" if difference.field.startswith("result") else f"{name!r} is left behind"
    if difference.field.startswith(("trigger state", "user state")):
        return f"state {name!r} begins empty"
    if is_held(difference):
        if HELD in found.contents:
            return f"{name.removeprefix(f'{HELD}_')!r} is null for elements that wait now"
        return "elements wait for the watermark from now on" if name == HELD else ""
    if _is_added_aggregate(difference, found):
        return f"{name!r} is null for windows that are open now"
    return "" if f"acc_{name}" in expected.contents else None


def migrated(rows: pa.Table, found: StateFormat, schema: StateSchema, drop: Collection[str] = ()) -> pa.Table:
    """Rows as this configuration reads them: through the steps of their version, then column by column.

    A new contents column is null for the windows there are, and their results of it stay null: a count
    that began in the middle would be a wrong number. A new declared state is empty.

    Args:
        rows: as they were read.
        found: the format they were written with.
        schema: the columns that are needed.
        drop: contents and states that may be left behind.

    Raises:
        IncompatibleSnapshot: a field that can't be taken over; `field` names it.
    """
    rows = _stepped(rows, found.version)
    expected = StateFormat.of(schema)
    for difference in differences(found, expected):
        if taken_over(difference, found, expected, drop) is None:
            raise IncompatibleSnapshot(*difference, way_out(difference))
        if difference.found is None and _of_rest(difference) is not None:
            name = _name(difference)
            rows = rows.append_column(name, pa.nulls(len(rows), dict(schema.contents)[name]))
        elif difference.found is None and difference.field.startswith("contents"):
            rows = _with_missing(rows, _name(difference), dict(schema.contents)[_name(difference)])
    return _with_results(rows, schema.result) if found.result != expected.result else rows


def is_held(difference: Difference) -> bool:
    """Whether a difference is about elements that wait for the watermark."""
    return difference.field.startswith("contents") and f"{_name(difference)}_".startswith(f"{HELD}_")


def _stepped(rows: pa.Table, version: int) -> pa.Table:
    if not 1 <= version <= FORMAT_VERSION:
        raise IncompatibleSnapshot(
            "version", version, f"1 to {FORMAT_VERSION}", "Read it with the library version that wrote it"
        )
    for step in range(version, FORMAT_VERSION):
        rows = STEPS[step](rows)
    return rows


def _different(what: str, found: Types, expected: Types) -> Iterator[Difference]:
    for name in {**found, **expected}:
        if name in found and name in expected and None in (found[name], expected[name]):
            continue
        if found.get(name, "") != expected.get(name, ""):
            yield Difference(
                f"{what} {name!r}",
                (found[name] or "inferred") if name in found else None,
                (expected[name] or "inferred") if name in expected else None,
            )


def _is_dropped(difference: Difference, drop: Collection[str]) -> bool:
    name = _name(difference)
    return (f"acc_{name}" if difference.field.startswith("result") else name) in drop


def _is_added_aggregate(difference: Difference, found: StateFormat) -> bool:
    """Named aggregates are columns of their own; other contents are all or nothing."""
    return difference.field.startswith("contents 'acc_") and any(name.startswith("acc_") for name in found.contents)


def _of_rest(difference: Difference) -> str | None:
    """The contents column whose rest a difference is about, if it is about one."""
    name = _name(difference)
    is_rest = difference.field.startswith("contents") and name.startswith(f"{REST}acc")
    return name.removeprefix(REST) if is_rest else None


def _with_missing(rows: pa.Table, name: str, kind: pa.DataType | None) -> pa.Table:
    older = pc.is_in(rows["namespace"], pa.array([WINDOW, DISCARDED])).to_pylist()
    missing = [
        [*(names or []), name] if is_window else names
        for names, is_window in zip(rows["missing"].to_pylist(), older, strict=True)
    ]
    index = rows.schema.get_field_index("missing")
    rows = rows.append_column(name, pa.nulls(len(rows), kind or pa.null()))
    return rows.set_column(index, "missing", pa.array(missing, pa.list_(pa.string())))


def _with_results(rows: pa.Table, result: pa.DataType | None) -> pa.Table:
    """Panes that may be withdrawn, with the columns that results have now; new ones are null."""
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


def _name(difference: Difference) -> str:
    return difference.field.split("'")[1] if "'" in difference.field else difference.field


def way_out(difference: Difference) -> str:
    """What can be done about a difference that can't be taken over."""
    if is_held(difference) and difference.expected is None:
        return f"Elements wait there for the watermark and would be lost: keep time_sorted=True. {_START_ANEW}"
    if difference.field.startswith(("contents", "trigger state", "user state")) and difference.expected is None:
        return f"Name {_name(difference)!r} among what may be dropped, or keep computing it"
    if difference.field.startswith("key"):
        return f"Another key has other hashes, so its rows lie elsewhere. {_START_ANEW}"
    return _START_ANEW


def _result_types(result: pa.DataType | None) -> Types:
    if isinstance(result, pa.StructType):
        return {result.field(i).name: str(result.field(i).type) for i in range(result.num_fields)}
    return {} if result is None else {"": str(result)}


def _texts(columns: Any) -> dict[str, str | None]:
    return {name: None if kind is None else str(kind) for name, kind in columns}
