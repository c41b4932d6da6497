"""Spark's classes as a JVM wants them in memory, kept in one file: with it a session starts in about half the time.

Class data sharing of the JDK: a short run leaves what it loaded in an archive, and a JVM of the same Java
with the same class path maps it instead of reading, checking and linking twenty thousand classes. One
that it does not fit runs without it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import xxhash

from pipelines.jars import jars_folder

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


def make_archive(java: str, tell: Callable[[str], None] = lambda line: None) -> Path | None:
    """The archive, made by a short run where it is not there yet; None if this Java can't make one.

    Args:
        java: what the Java says of itself.
        tell: is told why there is none.
    """
    file = archive_file(java)
    if file.exists():
        return file
    part = file.with_name(f"{file.name}.{uuid.uuid4().hex}")
    try:
        command = [sys.executable, "-m", "pipelines.class_archive", str(part)]
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


def _run_for(archive: Path, folder: Path) -> None:
    """A backfill and a stream over three rows, in a JVM that leaves its classes in an archive as it ends."""
    import pyarrow as pa
    from deltalake import write_deltalake
    from pyspark import SparkContext

    from pipelines import DeltaSource, Pipeline
    from pipelines.backfill import backfill
    from pipelines.config import Config
    from pipelines.driver import drive
    from pipelines.intervals import cut
    from pipelines.stream import Stream
    from windowing import Count, TumblingEventTimeWindows, WatermarkStrategy, Windows

    options = f'-XX:TieredStopAtLevel=1 "-XX:ArchiveClassesAtExit={archive}" {_QUIET}'
    config = Config(root=folder, spark={"spark.master": "local[2]", "spark.driver.extraJavaOptions": options})
    begin = datetime(2024, 3, 1, tzinfo=UTC)
    moments = pa.array([begin + timedelta(hours=hour) for hour in (1, 2, 30)], pa.timestamp("us", tz="UTC"))
    write_deltalake(f"{config.warehouse_uri}/events", pa.table({"user": ["a", "b", "c"], "at": moments}))
    pipeline = Pipeline(
        name="made_ready",
        # Through Spark, which loads more classes than the tasks' own reader.
        source=DeltaSource("events", timestamp="at", reader="spark"),
        key=("user",),
        watermark=WatermarkStrategy.for_monotonous_timestamps(),
        compute=Windows(TumblingEventTimeWindows.of(timedelta(hours=1)), aggregate={"events": Count()}),
    )
    with drive(config, pipeline, "setup") as driver:
        list(backfill(driver, cut(begin, begin + timedelta(days=1), None)))
        Stream(driver, config.work_folder, lambda manifest: None).run_available()
        jvm = SparkContext._gateway
    assert jvm is not None
    jvm.shutdown()
    jvm.proc.stdin.close()
    jvm.proc.wait()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made_in:
        _run_for(Path(sys.argv[1]), Path(made_in))
