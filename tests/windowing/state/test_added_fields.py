"""Kept elements take columns that were added to their source: as null, at any depth and in any place."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.windowing.state.added_fields import only_adds, with_added

PLAIN = st.sampled_from(
    [pa.int64(), pa.string(), pa.timestamp("us", tz="UTC"), pa.decimal128(10, 2), pa.date32(), pa.bool_()]
)
NAMES = st.sampled_from(["a", "b b", "c.d", "e", "ü", "list"])


def nested(kinds: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    return st.one_of(
        st.dictionaries(NAMES, kinds, min_size=1, max_size=4).map(lambda fields: pa.struct(list(fields.items()))),
        kinds.map(pa.list_),
        kinds.map(lambda kind: pa.map_(pa.string(), kind)),
    )


KINDS = st.recursive(PLAIN, nested, max_leaves=6)


def narrower(draw: st.DrawFn, kind: pa.DataType) -> pa.DataType:
    """Return a type of which some structs lack fields, or have them in another order."""
    if pa.types.is_struct(kind):
        kept = draw(st.lists(st.sampled_from(range(kind.num_fields)), unique=True, min_size=1))
        return pa.struct([(kind.field(place).name, narrower(draw, kind.field(place).type)) for place in kept])
    if pa.types.is_list(kind):
        return pa.list_(narrower(draw, kind.value_type))
    return pa.map_(kind.key_type, narrower(draw, kind.item_type)) if pa.types.is_map(kind) else kind


def value_of(draw: st.DrawFn, kind: pa.DataType) -> Any:
    if draw(st.integers(0, 4)) == 0:
        return None
    if pa.types.is_struct(kind):
        return {field.name: value_of(draw, field.type) for field in kind}
    if pa.types.is_list(kind):
        return [value_of(draw, kind.value_type) for _ in range(draw(st.integers(0, 2)))]
    if pa.types.is_map(kind):
        return [(key, value_of(draw, kind.item_type)) for key in "xy"[: draw(st.integers(0, 2))]]
    return pa.array([1, 2]).cast(pa.string()).cast(kind)[0].as_py() if pa.types.is_int64(kind) else None


def filled(value: Any, kind: pa.DataType) -> Any:
    """Return a value with null for each field that it lacks."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: filled(value.get(field.name), field.type) for field in kind}
    if pa.types.is_list(kind):
        return [filled(each, kind.value_type) for each in value]
    return [(key, filled(each, kind.item_type)) for key, each in value] if pa.types.is_map(kind) else value


@st.composite
def grown(draw: st.DrawFn) -> tuple[pa.DataType, pa.DataType, list[Any]]:
    kind = draw(KINDS)
    less = narrower(draw, kind)
    return less, kind, [value_of(draw, less) for _ in range(draw(st.integers(0, 4)))]


@given(grown(), st.integers(0, 2))
def test_values_keep_their_fields_and_get_null_for_the_added_ones(
    drawn: tuple[pa.DataType, pa.DataType, list[Any]], cut: int
) -> None:
    less, kind, values = drawn
    assert only_adds(str(less), str(kind)) == (less != kind)
    column = pa.chunked_array([pa.array(values, less).slice(cut)], less)
    assert with_added(column, kind).to_pylist() == [filled(value, kind) for value in values[cut:]]


@given(KINDS, KINDS)
def test_what_is_accepted_as_text_can_be_converted(less: pa.DataType, kind: pa.DataType) -> None:
    if only_adds(str(less), str(kind)):
        assert with_added(pa.chunked_array([pa.nulls(2, less)]), kind).type == kind


@pytest.mark.parametrize(
    ("less", "kind"),
    [
        (pa.struct([("a", pa.int64()), ("b", pa.int64())]), pa.struct([("a", pa.int64())])),
        (pa.struct([("a", pa.int64())]), pa.struct([("a", pa.float64()), ("b", pa.int64())])),
        (pa.list_(pa.int64()), pa.struct([("item", pa.int64())])),
        (pa.int64(), pa.float64()),
        (pa.struct([("A", pa.int64())]), pa.struct([("a", pa.int64()), ("b", pa.int64())])),
    ],
)
def test_anything_else_is_another_type(less: pa.DataType, kind: pa.DataType) -> None:
    assert not only_adds(str(less), str(kind))
    assert not only_adds("inferred", str(kind))
    assert not only_adds(None, str(kind))
