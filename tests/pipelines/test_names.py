from __future__ import annotations

import pytest

from tidegate.pipelines.definition.names import check_name


@pytest.mark.parametrize("name", ["a", "aircraft_duty", "Q-1", "x" * 100])
def test_letters_digits_underscore_and_hyphen_make_a_name(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "1st", "_a", "-a", "a b", "a/b", "..", "a.b", "ä", "a\n", "x" * 101, "a:b", "a%2e"]
)
def test_anything_that_could_leave_its_folder_or_hide_in_it_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="use a letter"):
        check_name(name)
