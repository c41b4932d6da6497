"""The examples in docstrings run as they stand."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

from tidegate import windowing

MODULES = [
    module.name
    for module in pkgutil.walk_packages(windowing.__path__, "windowing.")
    if not module.name.endswith("__main__")
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_hold(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
