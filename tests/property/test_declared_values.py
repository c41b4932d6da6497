"""Any value that user code returns for any declared type: the same result or error, wherever epochs end."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.sources.delta.description import DeltaSource
from tidegate.pipelines.testing import PipelineHarness
from tidegate.windowing import CountTrigger, KeyedProcess, TumblingEventTimeWindows, WatermarkStrategy, Windows
from tidegate.windowing.declared import checker
from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.functions import AggregateFunction, KeyedProcessFunction
from tidegate.windowing.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)

SOURCE = pa.schema([("user", pa.string()), ("at", pa.int64()), ("n", pa.int64())])
SHOWN = pa.struct([("shown", pa.string())])
BERLIN = ZoneInfo("Europe/Berlin")
"""Its clocks went back on 2024-10-27 at 03:00, so 02:30 came twice, and 2024-03-31 had no 02:30."""

FLAT: list[pa.DataType] = [
    pa.int8(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.bool_(),
    pa.string(),
    pa.binary(),
    pa.date32(),
    pa.decimal128(5, 2),
    pa.decimal128(38, 0),
    pa.timestamp("us", "UTC"),
    pa.timestamp("us"),
    pa.timestamp("s", "UTC"),
    pa.timestamp("ms", "Europe/Berlin"),
    pa.timestamp("ns", "UTC"),
]

VALUES: list[Any] = [
    *(0, 1, -1, 200, 2**40, 2**53 + 1, 2**63, 16_777_217, True, False),
    *(0.5, 1.0, -0.0, 0.1, 1e300, 2.0**53, math.nan, math.inf),
    *(np.int64(3), np.int8(-3), np.float64(2.7), np.float32(0.1), np.float16(2), np.bool_(True), np.str_("n")),
    *(Decimal("1.5"), Decimal("1.005"), Decimal("7"), Decimal("-0.0"), Decimal("1e3"), Decimal("NaN"), Fraction(1, 3)),
    *("", "ann", "7", "é", "\ud800", b"", b"ann", b"\xff", bytearray(b"x")),
    *(date(2024, 3, 1), datetime(2024, 3, 1), datetime(2024, 3, 1, 0, 0, 0, 5), time(3)),
    *(datetime(2024, 3, 1, tzinfo=UTC), datetime(2024, 3, 1, 0, 0, 0, 5, UTC), datetime(1, 1, 1, tzinfo=UTC)),
    *(datetime(2024, 3, 1, tzinfo=timezone(timedelta(hours=5))), datetime(9999, 12, 31, 23, 30, tzinfo=UTC)),
    *(datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN, fold=1), datetime(2024, 3, 31, 2, 30, tzinfo=BERLIN)),
    *(1_709_251_200_000, 1_709_251_200_001, timedelta(1), 1 + 2j, object),
]

kinds = st.recursive(
    st.sampled_from(FLAT),
    lambda inner: st.one_of(
        inner.map(pa.list_),
        st.tuples(inner, st.booleans()).map(lambda made: pa.struct([pa.field("a", *made), ("b", pa.int64())])),
        st.tuples(st.sampled_from([pa.string(), pa.int64(), pa.float32()]), inner).map(lambda made: pa.map_(*made)),
    ),
    max_leaves=3,
)


def values_of(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Draw values that mostly match a type, and others."""
    anything = st.sampled_from([*VALUES, None, [], {}, (1, 2), [0.5], {"a": 1}, {"a": None}, {"a": 1, "c": 2}])
    if pa.types.is_struct(kind):
        meant: Any = st.fixed_dictionaries(
            {"a": values_of(kind.field("a").type)}, optional={"b": values_of(pa.int64())}
        )
    elif pa.types.is_map(kind):
        keys = st.sampled_from([v for v in ("x", np.str_("y"), 1, 2.0, 0.1) if _fits(v, kind.key_type)])
        meant = st.dictionaries(keys, values_of(kind.item_type), max_size=2)
    elif pa.types.is_list(kind):
        meant = st.lists(values_of(kind.value_type), max_size=2).flatmap(lambda v: st.sampled_from([v, tuple(v)]))
    else:
        fit = [value for value in VALUES if _fits(value, kind)]
        meant = st.sampled_from(fit)
    return st.integers(0, 19).flatmap(lambda number: meant if number else anything)


def _fits(value: Any, kind: pa.DataType) -> bool:
    try:
        checker(kind, "drawn", None)(value)
    except IllegalArgument:
        return False
    return True


class Folding(AggregateFunction):
    """Takes the values of a list one after the other, and returns its accumulator. It changes lists in place."""

    result_type = SHOWN

    def __init__(self, kind: pa.DataType, values: Sequence[Any]) -> None:
        self.accumulator_type, self.values = kind, values

    def create_accumulator(self) -> Any:
        return None

    def add(self, value: Any, accumulator: Any) -> Any:
        new = self.values[value["n"]]
        if isinstance(accumulator, list) and isinstance(new, list | tuple):
            accumulator += new
            return accumulator
        return new

    def merge(self, accumulator: Any, other: Any) -> Any:
        return other

    def get_result(self, accumulator: Any) -> dict[str, Any]:
        return {"shown": repr(accumulator)}


class Emitting(Folding):
    """Returns its accumulator itself, and changes it in place at the next element."""

    def __init__(self, kind: pa.DataType, values: Sequence[Any]) -> None:
        super().__init__(kind, values)
        self.result_type = pa.struct([("shown", kind)])

    def get_result(self, accumulator: Any) -> dict[str, Any]:
        return {"shown": accumulator}


class Putting(KeyedProcessFunction):
    """Emits what it finds in a state of a kind, then stores the values of a list there, one for each element."""

    result_type = SHOWN

    def __init__(self, of: str, kind: pa.DataType, values: Sequence[Any]) -> None:
        self.of, self.values = of, values
        self.state: Any = {
            "value": lambda: ValueStateDescriptor("kept", kind),
            "list": lambda: ListStateDescriptor("kept", kind),
            "map": lambda: MapStateDescriptor("kept", pa.string(), kind),
            "key": lambda: MapStateDescriptor("kept", kind, pa.int64()),
            "reducing": lambda: ReducingStateDescriptor("kept", lambda old, new: new, kind),
            "aggregating": lambda: AggregatingStateDescriptor("kept", Folding(kind, values)),
        }[of]()

    def states(self) -> Sequence[Any]:
        return (self.state,)

    def process_element(self, value: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
        state, new = ctx.get_state(self.state), self.values[value["n"]]
        if self.of == "value":
            yield {"shown": repr(state.value())}
            state.update(new)
        elif self.of == "map":
            yield {"shown": repr(state.items())}
            state.put("k", new)
        elif self.of == "key":
            yield {"shown": repr((state.items(), state.get(new)))}
            state.put(new, value["n"])
        else:
            yield {"shown": repr(state.get())}
            state.add(value if self.of == "aggregating" else new)


def outcome(compute: Any, elements: int, cut: bool) -> list[str] | str:
    """Return what the results contain, or the error, with an epoch for each element or a single one."""
    made = PipelineHarness(
        Pipeline(
            name="puts",
            source=DeltaSource("events", timestamp="at", unit="ms"),
            key=("user",),
            watermark=WatermarkStrategy.for_monotonous_timestamps(),
            compute=compute,
            uses=("n",),
        ),
        SOURCE,
    )
    now = datetime(2024, 3, 1, tzinfo=UTC)
    try:
        for number in range(elements):
            made.commit([{"user": "ann", "at": number, "n": number}], at=now)
            if cut:
                made.run()
        made.run()
    except IllegalArgument as error:
        return str(error)
    return [repr(row["shown"]) for row in made.results()]


@settings(max_examples=2 * settings.default.max_examples)
@given(
    st.data(), st.sampled_from(["value", "list", "map", "key", "reducing", "aggregating", "window", "emitted"]), kinds
)
def test_what_user_code_gives_is_kept_alike_or_refused_alike(data: st.DataObject, of: str, kind: pa.DataType) -> None:
    if of == "key":
        kind = data.draw(st.sampled_from(FLAT))
    values = data.draw(st.lists(values_of(kind), min_size=1, max_size=4))
    if of == "key":
        values = [value for value in values if value.__hash__ is not None]
    check(of, kind, values if of == "key" else [*values, None])


def check(of: str, kind: pa.DataType, values: list[Any]) -> None:
    def compute() -> Any:
        if of in ("window", "emitted"):
            function = (Folding if of == "window" else Emitting)(kind, values)
            return Windows(TumblingEventTimeWindows.of(1000), CountTrigger.of(1), aggregate=function)
        return KeyedProcess(Putting(of, kind, values), time_sorted=False)

    assert outcome(compute(), len(values), cut=True) == outcome(compute(), len(values), cut=False)
