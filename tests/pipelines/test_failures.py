"""Errors of libraries that span many lines are reduced to the important one."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake.exceptions import DeltaError

import tidegate
from tidegate.pipelines.errors import (
    FilesMissing,
    OtherWindows,
    Refused,
    SourceFileMissing,
    TidegateError,
    UserCodeFailed,
)
from tidegate.pipelines.failures import (
    in_words,
    may_be_intact,
    remedies_as_data,
    remedy_for,
    reported_as,
    with_remedy,
)
from tidegate.pipelines.remedy import Act, Remedy
from tidegate.pipelines.rendering import Spelling, command, python, spelled_as


class PythonException(Exception):
    """As Spark gives it."""


PythonException.__module__ = "pyspark.errors.exceptions.captured"


DENIED = OSError(
    "Generic S3 error: Error performing GET http://h/b/k in 1ms - Server returned non-2xx status code: 403 Forbidden: "
    '<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>It is\nso.</Message>'
    "<CanonicalRequest>GET\nx-amz-security-token:hush</CanonicalRequest></Error>\n\nDebug source: hush"
)
"""A store's error as Amazon returns it: over several lines, with the request."""


def in_task(raised: str) -> PythonException:
    return PythonException(
        "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
        '  File "shard.py", line 12, in run\n    raise this\n' + raised
    )


LOST = PythonException(
    "An error occurred while calling o131.collectToPython.\n: org.apache.spark.SparkException: Job aborted due to "
    "stage failure: Task 1 in stage 2.0 failed 1 times, most recent failure: Lost task 1.0 in stage 2.0 (TID 5) (host "
    "executor driver): org.apache.spark.SparkException: Python worker exited unexpectedly (crashed): \n\n\tat org"
)

ROTTEN_LOG = DeltaError(
    "Kernel error: Json error: Truncated record whilst reading string\n   0: <unknown>\n   1: <unknown>\n"
    "  12: start_thread\n             at ./nptl/pthread_create.c:442:8\n  13: clone3\n"
)

START = PythonException(
    "An error occurred while calling o3847.start.\n: org.apache.spark.SparkException: the query can't start\n"
    "\tat org.apache.spark.sql.Thing.start(Thing.scala:12)\nCaused by: java.lang.RuntimeException: wrapped\n"
    "\tat java.base/java.io.Thing\n\t... 12 more\nCaused by: java.io.IOException: No space left on device\n"
)

NO_EXECUTORS = PythonException(
    "An error occurred while calling None.org.apache.spark.api.java.JavaSparkContext.\n"
    ": java.lang.IllegalStateException: Spark context stopped while waiting for backend\n\tat org.apache.spark.Thing\n"
)

NO_DAEMON = PythonException(
    "An error occurred while calling o2170.collectToPython.\n: java.io.IOException: Stream closed\n"
    "\tat java.base/java.io.BufferedOutputStream.write\n"
    "\tat org.apache.spark.api.python.PythonWorkerFactory.createThroughDaemon(PythonWorkerFactory.scala:180)\n"
)

DISK = OSError(
    "Generic LocalFileSystem error\n  \x1b[31m↳\x1b[0m Unable to copy data to file\n  \x1b[31m↳\x1b[0m No space left "
    "on device (os error 28)\n\nbacktrace"
)


@pytest.mark.parametrize(
    ("code", "way"),
    [
        ("AccessDenied", "The store denied access"),
        ("ExpiredToken", "The store denied access"),
        ("SignatureDoesNotMatch", "The store denied access"),
    ],
)
def test_the_answer_of_a_store_becomes_its_code_its_message_and_a_way_out(code: str, way: str) -> None:
    error = OSError(str(DENIED).replace("{code}", code))
    assert in_words(error).endswith(f"403 Forbidden: {code}: It is so")
    assert with_remedy(error).startswith(f"{in_words(error)}. {way}")
    assert with_remedy(OSError(f"{error}"[:200])) != "", "an answer that is cut"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(28, "No space left on device"), "[Errno 28] No space left on device"),
        (DISK, "Generic LocalFileSystem error: Unable to copy data to file: No space left on device (os error 28)"),
        (in_task("OSError: [Errno 28] No space left on device"), "OSError: [Errno 28] No space left on device"),
        (
            in_task("tidegate.pipelines.errors.Refused: a file can't be read: it is damaged."),
            "a file can't be read: it is damaged",
        ),
        (in_task("MemoryError"), "MemoryError"),
        (LOST, "Python worker exited unexpectedly (crashed) (killed, or out of memory?)"),
        (DeltaError("Invalid log.\nmore\nand more"), "Invalid log"),
        (ConnectionRefusedError(), "ConnectionRefusedError"),
        (ROTTEN_LOG, "Kernel error: Json error: Truncated record whilst reading string"),
        (START, "org.apache.spark.SparkException: the query can't start: java.io.IOException: No space left on device"),
        (NO_DAEMON, "the process that starts Spark's Python workers has ended (killed, or out of memory?)"),
    ],
    ids=[
        *("system", "deltalake", "task", "ours in a task", "without words", "lost task", "first line", "silent"),
        *("native backtrace", "Java", "daemon"),
    ],
)
def test_an_error_in_one_line(error: Exception, words: str) -> None:
    assert in_words(error) == words


@pytest.mark.parametrize(
    ("error", "way"),
    [
        (OSError(28, "No space left on device"), "make room for the warehouse and the work folder"),
        (DISK, "make room"),
        (START, "make room"),
        (OSError(30, "Read-only file system"), "set `warehouse` or `work` in tidegate.toml"),
        (PermissionError(13, "Permission denied"), "This user has no permission there"),
        (OSError(27, "File too large"), None),
        (NO_EXECUTORS, None),
        (NO_DAEMON, None),
    ],
)
def test_what_the_system_lacks_comes_with_what_to_do(error: Exception, way: str | None) -> None:
    found = remedy_for(error)
    assert found is None if way is None else way in str(found)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (DISK, TidegateError),
        (in_task("ValueError: bad"), TidegateError),
    ],
)
def test_what_is_from_beneath_is_told_with_what_could_not_be_done_and_how_things_stand(
    error: Exception, kind: type[TidegateError]
) -> None:
    with pytest.raises(TidegateError, match=r"^epoch 7 can't be committed: .*\. Run again$") as told:  # noqa: SIM117
        with reported_as("epoch 7 can't be committed", "Run again"):
            raise error
    assert type(told.value) is kind
    assert told.value.__cause__ is error


@pytest.mark.parametrize("kind", [Refused, FilesMissing, UserCodeFailed, SourceFileMissing, OtherWindows])
def test_an_error_of_ours_in_a_task_keeps_its_class_and_its_whole_message(kind: type[TidegateError]) -> None:
    message = f"file {'x' * 600} is missing: restore it. Nothing was committed."
    raised = in_task(f"tidegate.pipelines.errors.{kind.__name__}: {message}\n\nJVM stacktrace:\n\tat org.apache.Thing")
    with pytest.raises(kind) as told, reported_as("epoch 7 can't be committed", "Run again"):
        raise raised
    assert type(told.value) is kind
    assert str(told.value) == message
    assert told.value.__cause__ is raised


@pytest.mark.parametrize(("spelling", "told"), [(python, "`project.forget("), (command, "`tidegate forget ")])
def test_the_driver_spells_the_remedies_of_an_error_in_a_task(spelling: Spelling, told: str) -> None:
    ways = (Remedy(Act.FORGET, "hours", key=("ann",)), Remedy(Act.RESTART, "hours"))
    with pytest.raises(Refused) as sent, remedies_as_data():
        raise Refused("the file is gone", *ways)
    raised = in_task(f"tidegate.pipelines.errors.Refused: {sent.value}")
    with spelled_as(spelling), pytest.raises(Refused) as received, reported_as("it can't be", "Run again"):
        raise raised
    assert received.value.remedies == ways
    with spelled_as(spelling):
        assert str(received.value) == str(Refused("the file is gone", *ways)) == in_words(raised)
        assert told in str(received.value)


@pytest.mark.parametrize("error", [Refused("ours"), ZeroDivisionError("a bug")])
def test_errors_of_ours_and_bugs_pass_as_they_are(error: Exception) -> None:
    with pytest.raises(type(error), match=f"^{error}$"):  # noqa: SIM117
        with reported_as("it can't be", "Run again"):
            raise error


OURS = str(Path(tidegate.__file__).parent / "windowing" / "feed.py")


@pytest.mark.parametrize(
    ("files", "line"),
    [
        (("/spark/pyspark/worker.py", OURS, "/home/ann/hours.py"), "/home/ann/hours.py:3 in f"),
        ((OURS, f"{Path.cwd()}/jobs/hours.py", OURS), "jobs/hours.py:2 in f"),
        (("/tmp/x/code-0a1b.zip/tidegate/windowing/feed.py", "/tmp/x/code-0a1b.zip/hours.py"), "hours.py:2 in f"),
        ((OURS, "/home/ann/hours.py", "/e/lib/python3.11/json/decoder.py"), "/home/ann/hours.py:2 in f"),
        (
            ("/e/lib/site-packages/tidegate/feed.py", "/repo/tidegate/pipelines/mine.py"),
            "/repo/tidegate/pipelines/mine.py:2 in f",
        ),
        (("/usr/bin/tidegate", OURS), None),
        ((OURS, "/e/lib/python3.11/site-packages/pandas/core.py"), None),
        ((OURS, "<frozen importlib._bootstrap>"), None),
    ],
)
def test_an_error_names_the_line_of_user_code_that_raised_it(files: tuple[str, ...], line: str | None) -> None:
    frames = "".join(f'  File "{file}", line {number}, in f\n    x\n' for number, file in enumerate(files, 1))
    error = PythonException(f"worker:\nTraceback (most recent call last):\n{frames}KeyError: 'valeu'\n")
    assert in_words(error) == "KeyError: 'valeu'" + ("" if line is None else f" ({line})")


@pytest.mark.parametrize(
    ("error", "may_be"),
    [
        (PermissionError(13, "whatever it says"), True),
        (OSError(28, "No space left on device"), True),
        (OSError("Couldn't deserialize thrift: Permission denied"), False),
        (FileNotFoundError(2, "No such file"), False),
        (pa.ArrowInvalid("Parquet magic bytes not found"), False),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), False),
    ],
)
def test_what_the_system_kept_from_being_read_is_told_from_damage_by_its_class(error: Exception, may_be: bool) -> None:
    assert may_be_intact(error) is may_be
