from __future__ import annotations

import pytest

from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.project.given import size_of


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("1k", 1024), ("64M", 64 * 1024**2), ("2 GiB", 2 * 1024**3), ("1tb", 1024**4)]
)
def test_a_size_is_a_number_with_a_unit_of_1024(text: str, size: int) -> None:
    assert size_of(text, "--max-bytes-per-epoch") == size


@pytest.mark.parametrize("text", ["", "0", "0m", "much", "1.5g", "-1", "1x", "g"])
def test_what_is_no_size_is_told_with_the_option_and_an_example(text: str) -> None:
    with pytest.raises(UsageError, match=r"--max-bytes-per-epoch .*bytes above zero.*512m"):
        size_of(text, "--max-bytes-per-epoch")
