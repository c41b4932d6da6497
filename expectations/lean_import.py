"""Imports Great Expectations without the libraries that checks don't use, which halves the start of a check.

Great Expectations imports every library that any of its expectations may need. Checks read data frames, so they need
neither Spark nor SQL databases, few need statistics, and none draws charts.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType

_NOT_NEEDED = frozenset({"pyspark", "sqlalchemy"})
"""Optional dependencies of Great Expectations."""

_WHEN_USED = frozenset({"altair", "scipy.stats"})


class _Lean(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in _NOT_NEEDED:
            raise ModuleNotFoundError(f"checks don't need {fullname}", name=fullname)
        if fullname not in _WHEN_USED:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


def import_lean() -> None:
    """Import Great Expectations for data frames alone.

    Use it in a process that only runs checks: its Great Expectations does not work with Spark or a database. Code that
    is imported later, such as a suite, can import all libraries.
    """
    finder = _Lean()
    sys.meta_path.insert(0, finder)
    try:
        import great_expectations.expectations  # noqa: F401
    finally:
        sys.meta_path.remove(finder)
