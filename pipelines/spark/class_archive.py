"""Spark's classes as a JVM wants them in memory, kept in one file: with it a session starts in about half the time.

Class data sharing of the JDK: a short run leaves what it loaded in an archive, and a JVM of the same Java
with the same class path maps it instead of reading, checking and linking twenty thousand classes. One
that it does not fit runs without it.
"""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import xxhash

from tidegate.pipelines.spark.jars import jars_folder

_KEPT = 3
"""Archives of other environments and other Javas that stay; each has about 200 MB."""

_QUIET = "-Xlog:disable -Xlog:all=warning:stderr"
"""A JVM tells on stdout why an archive does not fit, in the middle of the JSON of a command."""


def archive_file(java: str) -> Path:
    """Where the archive is, or would be, for this Spark and a Java of which this is told."""
    import pyspark

    jars = sorted((*(Path(pyspark.__file__).parent / "jars").glob("*.jar"), *jars_folder().glob("*.jar")))
    # As the JVM sees them: one that was written again, such as by a new environment in the same place, is another one.
    seen = [f"{jar} {status.st_size} {status.st_mtime_ns}" for jar in jars for status in (jar.stat(),)]
    fits = xxhash.xxh64_hexdigest("\n".join((java, *seen)).encode())
    return jars_folder() / f"classes-{fits}.jsa"


def java_options(java: str) -> str:
    """What a JVM is told to use the archive; nothing where there is none."""
    file = archive_file(java)
    return f'"-XX:SharedArchiveFile={file}" {_QUIET}' if file.exists() else ""


def options_to_make(archive: Path) -> str:
    """Options of a JVM that leaves its classes in an archive as it ends."""
    return f'-XX:TieredStopAtLevel=1 "-XX:ArchiveClassesAtExit={archive}" {_QUIET}'


def make_archive(java: str, run: str, tell: Callable[[str], None] = lambda line: None) -> Path | None:
    """The archive, made by a short run where it is not there yet; None if this Java can't make one.

    Args:
        java: what the Java says of itself.
        run: module that is run with the archive's path: a JVM that starts with `options_to_make` and does some work.
        tell: is told why there is none.
    """
    file = archive_file(java)
    if file.exists():
        return file
    part = file.with_name(f"{file.name}.{uuid.uuid4().hex}")
    try:
        command = [sys.executable, "-m", run, str(part)]
        ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if not part.exists():
            *_, last = ["it said nothing", *ran.stderr.splitlines()]
            tell(f"the run that makes the archive ended with exit code {ran.returncode}: {last}")
            return None
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)
    archives = sorted(file.parent.glob("classes-*.jsa"), key=lambda each: each.stat().st_mtime, reverse=True)
    for old in archives[_KEPT:]:
        # Another environment may be making its own; a JVM that uses the file keeps it open.
        with suppress(OSError):
            old.unlink()
    return file
