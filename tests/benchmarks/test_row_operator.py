"""The row operator stays fast and small: ceilings three times as wide as what the benchmark shows."""

from __future__ import annotations

import pytest

from benchmarks import row_operator

TIMES_BARE = {"tumbling sum": 16, "sessions": 27}
"""Time of each workload as a multiple of a bare dict loop, measured by benchmarks/row_operator.py."""

BYTES_AT_MOST = 1024


@pytest.mark.long
@pytest.mark.parametrize("workload", TIMES_BARE)
def test_windows_cost_at_most_three_times_what_was_measured_over_a_bare_loop(workload: str) -> None:
    elements = row_operator.elements_of_a_day(50_000, 5_000)
    ratios = [row_operator.measure_speed(row_operator.WORKLOADS[workload], elements).times_bare for _ in range(3)]
    assert min(ratios) < 3 * TIMES_BARE[workload]


@pytest.mark.long
@pytest.mark.parametrize("workload", TIMES_BARE)
def test_an_open_window_takes_at_most_a_kibibyte(workload: str) -> None:
    assert row_operator.bytes_per_open_window(row_operator.WORKLOADS[workload], 20_000) <= BYTES_AT_MOST


def test_the_benchmark_computes_what_the_bare_loop_computes() -> None:
    elements = row_operator.elements_of_a_day(5_000, 100)
    assert row_operator.run(row_operator.WORKLOADS["tumbling sum"], elements) == row_operator.bare_loop(elements)
