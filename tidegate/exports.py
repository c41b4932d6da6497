"""Names that a package exports and that are imported on first use, so that a program loads only what it uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def exports(
    package: str, modules: Mapping[str, str]
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__all__`, `__getattr__` and `__dir__` of a package.

    The package also imports the names under `TYPE_CHECKING`, for type checkers and editors.

    Args:
        package: the name of the package.
        modules: the names, separated by spaces, by the module that has them, relative to the package: `.count`.
    """
    module_of = {name: module for module, names in modules.items() for name in names.split()}

    def get(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(module_of[name], package), name)

    return sorted(module_of), get, lambda: sorted(module_of)
