"""The epochs whose snapshots went are told by their runs: a stream has hundreds of them."""

from __future__ import annotations

import pytest

from tidegate.pipelines.project.clean import spans


@pytest.mark.parametrize(
    ("epochs", "told"),
    [
        ((), "none"),
        ((7,), "1 (7)"),
        ((5, 4, 3, 2, 1), "5 (1 to 5)"),
        ((9, 8, 6, 3, 2), "5 (2 to 3, 6, 8 to 9)"),
        (tuple(range(1, 41, 2)), "20 (1, 3, 5, 7, 9, 11, 13, 15, 17, 19, and 10 more such runs)"),
    ],
)
def test_numbers_are_told_by_their_runs(epochs: tuple[int, ...], told: str) -> None:
    assert spans(epochs) == told
