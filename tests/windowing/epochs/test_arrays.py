"""Records of parallel arrays are taken, cut and put together field by field, whatever their fields are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np
import pyarrow as pa
import pytest

from tidegate.windowing.aggregates.vectorised import Bools, Int64s
from tidegate.windowing.columnar.chains import Chains
from tidegate.windowing.columnar.clusters import Clusters
from tidegate.windowing.columnar.kernel import LateRows
from tidegate.windowing.columnar.panes import PaneRows
from tidegate.windowing.columnar.sessions import Sessions
from tidegate.windowing.columnar.state import InFlight
from tidegate.windowing.epochs import Elements
from tidegate.windowing.epochs.arrays import ParallelArrays


@dataclass(frozen=True, kw_only=True)
class Every(ParallelArrays):
    """A field of each kind."""

    numbers: Int64s
    flags: Bools
    array: pa.Array
    columns: list[pa.Array]
    named: Mapping[str, pa.Array]
    table: pa.Table
    absent: pa.Array | None = None


def every(*numbers: int) -> Every:
    array = pa.array(numbers, pa.int64())
    return Every(
        numbers=np.array(numbers, np.int64),
        flags=np.array([number > 2 for number in numbers], np.bool_),
        array=array,
        columns=[array],
        named={"n": array},
        table=pa.table({"n": array}),
    )


def contents(record: Every) -> list[list[int]]:
    assert record.absent is None
    return [
        record.numbers.tolist(),
        record.array.to_pylist(),
        record.columns[0].to_pylist(),
        record.named["n"].to_pylist(),
        record.table["n"].to_pylist(),
    ]


def test_rows_are_taken_from_every_field() -> None:
    assert contents(every(1, 2, 3).take(np.array([2, 0, 2]))) == [[3, 1, 3]] * 5
    assert every(1, 2, 3).take(np.array([2, 0])).flags.tolist() == [True, False]


def test_rows_are_cut_from_every_field() -> None:
    assert contents(every(1, 2, 3, 4).slice(1, 2)) == [[2, 3]] * 5


@pytest.mark.parametrize("cuts", [[3], [1, 3], [0, 1, 1, 3]])
def test_parts_put_together_are_the_whole(cuts: list[int]) -> None:
    whole, begins = every(1, 2, 3), [0, *cuts]
    parts = [whole.slice(begin, end - begin) for begin, end in zip(begins, cuts, strict=False)]
    assert contents(Every.concat(parts)) == contents(whole)
    assert len(Every.concat(parts)) == 3


def test_an_empty_record_has_the_types_of_its_fields() -> None:
    nothing = every().array
    empty = Every.empty(array=nothing, columns=[nothing], named={"n": nothing}, table=pa.table({"n": nothing}))
    assert (len(empty), empty.numbers.dtype, empty.flags.dtype) == (0, np.int64, np.bool_)
    assert contents(Every.concat([empty, every(7)])) == [[7]] * 5


def test_a_field_that_is_no_numpy_array_has_to_be_given() -> None:
    with pytest.raises(TypeError, match="missing 4 required keyword-only arguments: 'array'"):
        Every.empty()


@pytest.mark.parametrize("record", [Elements, InFlight, PaneRows, LateRows, Chains, Clusters, Sessions])
def test_records_of_arrays_are_built_by_keyword(record: type[ParallelArrays]) -> None:
    assert issubclass(record, ParallelArrays)
    assert all(field.kw_only for field in fields(record))
