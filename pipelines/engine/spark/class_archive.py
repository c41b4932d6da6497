"""The archive of Spark's classes, with which a session starts in about half the time.

It uses the JDK's class data sharing: a short run writes the classes that it loaded to an archive, and a JVM of the
same Java with the same class path maps the archive into memory, instead of reading, checking and linking twenty
thousand classes. A JVM that does not match the archive runs without it.
"""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import xxhash

from tidegate.pipelines.engine.spark.connect import without_remote
from tidegate.pipelines.engine.spark.jars import jars_folder

_KEPT = 3
"""Number of archives to keep, for other environments and Java versions. Each takes about 200 MB."""

_NO_LOG = "-Xlog:disable -Xlog:all=warning:stderr"
"""Options that keep the JVM from printing why an archive does not match to stdout, where a command's JSON goes."""


def archive_file(java: str) -> Path:
    """Return the path of the archive, which may not exist yet, for this Spark and the Java with this version text."""
    import pyspark

    jars = sorted((*(Path(pyspark.__file__).parent / "jars").glob("*.jar"), *jars_folder().glob("*.jar")))
    # The JVM compares the size and time of each jar, so the archive does not match a new environment in the same place.
    seen = [f"{jar} {status.st_size} {status.st_mtime_ns}" for jar in jars for status in (jar.stat(),)]
    fits = xxhash.xxh64_hexdigest("\n".join((java, *seen)).encode())
    return jars_folder() / f"classes-{fits}.jsa"


def java_options(java: str) -> str:
    """Return the JVM options to use the archive; an empty string if there is no archive."""
    file = archive_file(java)
    return f'"-XX:SharedArchiveFile={file}" {_NO_LOG}' if file.exists() else ""


def options_to_make(archive: Path) -> str:
    """Return the options for a JVM that writes its classes to an archive when it ends."""
    return f'-XX:TieredStopAtLevel=1 "-XX:ArchiveClassesAtExit={archive}" {_NO_LOG}'


def make_archive(java: str, run: str, tell: Callable[[str], None] = lambda line: None) -> Path | None:
    """Return the archive, creating it with a short run if necessary, or None if this Java can't create one.

    Args:
        java: the version text of the Java, from `check_java`.
        run: module to run with the archive's path; it starts a JVM with `options_to_make` and does some work.
        tell: called with the reason if no archive can be created.
    """
    file = archive_file(java)
    if file.exists():
        return file
    part = file.with_name(f"{file.name}.{uuid.uuid4().hex}")
    try:
        command = [sys.executable, "-m", run, str(part)]
        ran = subprocess.run(
            command, env=without_remote(), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        if not part.exists():
            *_, last = ["it wrote no message", *ran.stderr.splitlines()]
            tell(f"the run that creates the archive ended with exit code {ran.returncode}: {last}")
            return None
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)
    archives = sorted(file.parent.glob("classes-*.jsa"), key=lambda each: each.stat().st_mtime, reverse=True)
    for old in archives[_KEPT:]:
        # Another environment may be creating its own archive. A JVM that uses the file keeps it open.
        with suppress(OSError):
            old.unlink()
    return file
