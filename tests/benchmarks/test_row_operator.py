"""The row operator stays fast and small: ceilings three times as wide as what the benchmark shows."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

TIMES_BARE = {"tumbling sum": 16, "sessions": 27}
"""How many times as long as a bare dict loop each workload takes, measured by benchmarks/row_operator.py."""

BYTES_AT_MOST = 1024


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "row_operator.py"
    spec = importlib.util.spec_from_file_location("row_operator_benchmark", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("workload", TIMES_BARE)
def test_windows_cost_at_most_three_times_what_was_measured_over_a_bare_loop(
    benchmark: ModuleType, workload: str
) -> None:
    elements = benchmark.elements_of_a_day(50_000, 5_000)
    ratios = [benchmark.measure_speed(benchmark.WORKLOADS[workload], elements).times_bare for _ in range(3)]
    assert min(ratios) < 3 * TIMES_BARE[workload]


@pytest.mark.parametrize("workload", TIMES_BARE)
def test_an_open_window_takes_at_most_a_kibibyte(benchmark: ModuleType, workload: str) -> None:
    assert benchmark.bytes_per_open_window(benchmark.WORKLOADS[workload], 20_000) <= BYTES_AT_MOST


def test_the_benchmark_computes_what_the_bare_loop_computes(benchmark: ModuleType) -> None:
    elements = benchmark.elements_of_a_day(5_000, 100)
    assert benchmark.run(benchmark.WORKLOADS["tumbling sum"], elements) == benchmark.bare_loop(elements)
