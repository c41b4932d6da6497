"""The draws find what was once broken: each fault, planted again, fails a property that holds without it."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Context
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from xxhash import xxh64_intdigest

from tests.property import columnar_cases
from tests.property import test_columnar_equals_row as equality
from tests.property.world import KEYS
from tidegate.windowing import First, Last, Mean, StandardDeviation, Sum, Variance, keys
from tidegate.windowing.aggregates import ApproxQuantile, chosen, doubles, sketches, spread, sums
from tidegate.windowing.aggregates.order import first_rows, ranks
from tidegate.windowing.keys import SPARK_SEED, KeySchema
from tidegate.windowing.time import MAX_TIMESTAMP, MIN_TIMESTAMP

pytestmark = pytest.mark.slow

quickly = settings(
    # It ends at the first example that fails. Which one that is depends on the modules that are loaded, too: Hypothesis
    # draws from their constants.
    max_examples=6000,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


def holds(monkeypatch: pytest.MonkeyPatch, *kinds: type) -> None:
    """The equality of both operators over the drawn pipelines, with aggregates of these kinds."""
    some = {name: made for name, made in columnar_cases.AGGREGATES.items() if isinstance(made, kinds)}
    monkeypatch.setattr(columnar_cases, "AGGREGATES", some)
    test = equality.test_every_epoch_gives_the_panes_late_rows_counters_and_state_of_the_row_operator
    inner = test.hypothesis.inner_test  # type: ignore[attr-defined]

    def check(case: columnar_cases.Case) -> None:
        inner(case)

    run: Callable[[], None] = quickly(given(columnar_cases.cases())(check))
    run()


def in_place(self: Any, rank: Any, valid: Any, values: pa.Array, groups: Any) -> Any:
    """As `First` and `Last` once were: ranks were written into, which Arrow gave read-only for small integers."""
    best, worst = (groups.max, MIN_TIMESTAMP) if self._largest else (groups.min, MAX_TIMESTAMP)
    ties = rank == best(rank)[groups.ids]
    if ties.sum() > len(groups):
        rank = ranks(values)
        rank[~ties] = worst
        ties &= rank == best(rank)[groups.ids]
    return first_rows(ties, groups)


def test_first_and_last_of_small_integers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chosen._Chosen, "_rows", in_place)
    with pytest.raises(ValueError, match="read-only"):
        holds(monkeypatch, First, Last)


def safely(values: pa.Array) -> Any:
    return values.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)


def test_averages_of_large_integers(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (sums, spread, sketches):
        monkeypatch.setattr(module, "doubles_of", safely)
    with pytest.raises(pa.ArrowInvalid, match="not in range"):
        holds(monkeypatch, Mean, Variance, StandardDeviation, ApproxQuantile)


def plainly(numbers: Any, groups: Any, rests: Any = None) -> Any:
    return groups.sum(numbers), np.zeros(len(groups))


@pytest.mark.long
def test_sums_of_doubles_whose_signs_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "sums", plainly)
    with pytest.raises(AssertionError):
        holds(monkeypatch, Sum, Mean)


def hashes_are_those_of_spark() -> None:
    @quickly
    @given(st.sampled_from([kind for kind in KEYS if pa.types.is_decimal(kind) and kind.precision > 18]), st.data())
    def test(kind: Any, data: Any) -> None:
        value = data.draw(st.sampled_from([value for value in KEYS[kind] if value is not None]))
        digits = f"{value:.{kind.scale}f}".replace(".", "")
        number = int(digits)
        size = (number.bit_length() if number >= 0 else (number + 1).bit_length()) // 8 + 1
        expected = xxh64_intdigest(number.to_bytes(size, "big", signed=True), SPARK_SEED)
        assert KeySchema(("k",), (kind,)).hash_of(value) == expected

    run: Callable[[], None] = test
    run()


def test_decimal_keys_of_more_than_28_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    hashes_are_those_of_spark()
    monkeypatch.setattr(keys, "DECIMALS", Context(prec=28))
    with pytest.raises(AssertionError):
        hashes_are_those_of_spark()


def test_totals_are_what_the_sums_of_doubles_know() -> None:
    total = doubles.Total.of(0.0)
    for number in (1e16, 1.0, -1e16, 1e-20):
        total = doubles.added(total, number)
    assert (float(total), total.rest) == (1.0, 1e-20)
