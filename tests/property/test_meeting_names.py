"""The rule of `definition.column_names`: whatever users call their columns, no two columns of a table of ours meet."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pipelines.counting import HOURS, counting
from tidegate.pipelines.definition import epochs, late, rejects, results, state
from tidegate.pipelines.definition.binding import BoundPipeline, bind
from tidegate.pipelines.definition.column_names import free_name, input_fields
from tidegate.pipelines.errors import Refused
from tidegate.windowing import Count, KeyedProcess, KeyedProcessFunction, Max, Windows
from tidegate.windowing.compute import Compute
from tidegate.windowing.errors import IllegalArgument

TIME = pa.timestamp("us", tz="UTC")


class Yields(KeyedProcessFunction):
    """Yields one column of any name."""

    def __init__(self, name: str) -> None:
        self.result_type = pa.struct([(name, pa.int64())])

    def process_element(self, value: object, ctx: object) -> list[object]:
        return []


COMPUTES: dict[str, Callable[[str], Compute]] = {
    "windows": lambda name: Windows(HOURS, aggregate={name: Max("value"), "n": Count()}),
    "function": lambda name: KeyedProcess(Yields(name)),
}


def bound(kind: str, key: str, name: str, *others: str) -> BoundPipeline:
    """A pipeline with a key, a result, and a source of these columns."""
    source = pa.schema([(key, pa.string()), ("at", TIME), ("value", pa.int64()), *((o, pa.int64()) for o in others)])
    return bind(counting(key=(key,), compute=COMPUTES[kind](name)), source, source)


OURS = {column.name for part in (results.LEADING, results.ELEMENT_LEADING, late.TRAILING) for column in part}
OURS |= {*epochs.SCHEMA.names, *rejects.schema(pa.schema([])).names}
OURS |= {
    *state.schema(bound("windows", "user", "total").state).names,
    *state.schema(bound("function", "u", "t").state).names,
}
POOL = sorted({*OURS, *(f"input_{name}" for name in OURS), "acc_n", "n", "tidegate:time", "user", "total"})
NAME = st.builds(lambda name, spelled: spelled(name), st.sampled_from(POOL), st.sampled_from([str, str, str.upper]))


def check_no_two_meet(kind: str, key: str, name: str, others: list[str]) -> None:
    """Bind a pipeline: either its names are refused, or each table has each name once."""
    taken = {key.casefold(), "at", "value"}
    try:
        schemas = bound(kind, key, name, *(other for other in others if other.casefold() not in taken)).table_schemas
    except (IllegalArgument, Refused):
        return
    for table, schema in schemas.items():
        assert len({column.casefold() for column in schema.names}) == len(schema), (table, schema.names)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(COMPUTES)), NAME, NAME, st.lists(NAME, max_size=4, unique_by=str.casefold))
def test_names_meet_in_no_table(kind: str, key: str, name: str, others: list[str]) -> None:
    check_no_two_meet(kind, key, name, others)


@pytest.mark.first(1)
@pytest.mark.parametrize("kind", sorted(COMPUTES))
def test_every_name_of_ours_is_refused_or_kept_apart(kind: str) -> None:
    for name in POOL:
        for spelled in (name, name.upper()):
            check_no_two_meet(kind, spelled, "total", ["other"])
            check_no_two_meet(kind, "user", spelled, ["other"])
            check_no_two_meet(kind, "user", "total", [spelled])


def test_without_the_check_they_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted bug: names of results are not looked at."""
    monkeypatch.setattr("tidegate.pipelines.definition.binding.check_names", lambda *ignored, **named: None)
    with pytest.raises(AssertionError, match="results"):
        check_no_two_meet("windows", "user", "Epoch", [])


@given(st.lists(NAME, max_size=6, unique_by=str.casefold), NAME)
def test_earlier_columns_of_a_source_keep_their_names_when_one_is_added(names: list[str], added: str) -> None:
    fields = [pa.field(name, pa.int64()) for name in names]
    before = input_fields(late.TRAILING, pa.schema(fields))
    after = input_fields(late.TRAILING, pa.schema([*fields, pa.field(added, pa.int64())]))
    assert after[: len(before)] == before


@given(NAME, st.sets(NAME))
def test_a_free_name_is_free(name: str, taken: set[str]) -> None:
    folded = {each.casefold() for each in taken}
    assert free_name(name, folded, "{}_".format).casefold() not in folded
    assert free_name(name, set(), "{}_".format) == name
