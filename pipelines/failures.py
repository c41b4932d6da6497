"""Failures of storage, of a Python task or of Spark, reported in one line with the remedy.

Libraries report them over many lines, in colours, with native backtraces; the error of a task is wrapped twice, and
Java's error comes after a line that only names an object by its number.
"""

from __future__ import annotations

import errno
import json
import os
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import NamedTuple

import tidegate
from tidegate.pipelines import errors
from tidegate.pipelines.errors import TidegateError
from tidegate.pipelines.remedy import Act, Remedy
from tidegate.pipelines.rendering import with_remedies

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_CAUSE = "↳"
_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'^\s*File "([^"]+)", line (\d+), in (.+)$', re.MULTILINE)
_INSTALLED = re.compile(r"^<|[/\\](?:(?:site|dist)-packages|lib[/\\]python3[^/\\]*|pyspark)[/\\]")
_OURS = re.compile(
    rf"{re.escape(os.path.dirname(tidegate.__file__))}[/\\]|[/\\](?:(?:site|dist)-packages|[^/\\]+\.zip)[/\\]tidegate[/\\]"
)
_LIBRARY = re.compile(
    r"^<(?:frozen|__array)|[/\\]lib[/\\]python3[^/\\]*[/\\](?!(?:site|dist)-packages)"
    r"|packages[/\\](?:numpy|pyarrow|pandas|deltalake)[/\\]"
)
"""Files of the standard library, and of libraries that Tidegate calls."""
_SHIPPED = re.compile(r"^.*[/\\]code-[0-9a-f]+\.zip[/\\]")
"""Path of the zip file with the project's modules, where executors got them."""
_LOST_TASK = re.compile(r"(Python worker exited unexpectedly[^\n]*)")
_CALL_OF_JAVA = "An error occurred while calling"
_JAVA_ERROR = re.compile(r"^(?:Caused by)?: (.+)$", re.MULTILINE)
_NO_DAEMON = re.compile(r"(?s)Stream closed|Broken pipe|EOFException")
_STORE = re.compile(r"Error performing \w+ (?:https?://|request)|error sending request|response body")
_ANSWER = re.compile(r"(?s)(?:<\?xml[^>]*>\s*)?<Error\b.*?(?:</Error>|\Z)")
"""The answer of a store that refused a request. Amazon's answer has two lines, and repeats the request."""
_CODE, _MESSAGE = re.compile(r"<Code>([^<]*)</Code>"), re.compile(r"<Message>([^<]*)</Message>")
_BENEATH = {"deltalake", "_internal", "obstore", "pyspark", "py4j", "grpc"}
"""Packages whose errors are system failures; `_internal` is the module of deltalake's errors."""
_LONGEST = 500
_SENT = " [remedies] "
"""Precedes the remedies in the text of an error that a task of Spark raised."""

_REMEDIES = (
    (
        re.compile(r"No space left on device|Disk quota exceeded|os error (?:28|122)|Errno (?:28|122)"),
        (
            "The disk is full: make room for the warehouse and the work folder, or set `warehouse` or `work` in "
            "tidegate.toml to a disk with room"
        ),
    ),
    (
        re.compile(r"Read-only file system|Permission denied|os error (?:13|30)|Errno (?:13|30)"),
        (
            "This user has no permission there: grant it, or set `warehouse` or `work` in tidegate.toml to another "
            "folder"
        ),
    ),
    (
        re.compile(r"/latest/(?:api/token|meta-data)|169\.254\.|/v2/credentials|metadata\.google|CredentialsNotLoaded"),
        (
            "No credentials for the object store were found, so this machine's role was tried. "
            "Give them in [storage_options] of tidegate.toml, in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or as "
            "AWS_PROFILE. Outside Airflow, `connection` in tidegate.toml is ignored"
        ),
    ),
    (
        re.compile(
            r"AccessDenied|status code: 40[13]|40[13] (?:Forbidden|Unauthorized)|necessary privileges|AccountProblem"
            r"|(?:Expired|Invalid)Token|token included in the request is expired|InvalidAccessKeyId"
            r"|SignatureDoesNotMatch"
        ),
        (
            "The store denied access: the credentials are wrong or have expired, or they don't allow this. A run needs "
            "s3:ListBucket on the buckets, s3:GetObject on the source, and s3:GetObject, s3:PutObject and "
            "s3:DeleteObject on the warehouse"
        ),
    ),
    (
        re.compile(r"client error \(Connect\)|error sending request|dns error|tcp connect error"),
        (
            "If the store is running, check its address (`aws_endpoint_url` under [storage_options], or "
            "AWS_ENDPOINT_URL) and proxies"
        ),
    ),
)
"""What the system lacks, and what to do about it. The text of any other error has to speak for itself."""

_OF_SYSTEM = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE}


def may_be_intact(error: BaseException) -> bool:
    """Return True if the system kept a file from being read, so that the file itself may be undamaged.

    Failures of an object store are `StoreFailed`, which no reader of files takes for damage.
    """
    return isinstance(error, OSError) and error.errno in _OF_SYSTEM


def in_words(error: BaseException) -> str:
    """Return an error in one line: the error of a task, or else its first line and the causes that deltalake adds."""
    text = _ANSWER.sub(_in_short, str(error))
    raised = _raised_in_task(text)
    return (
        with_remedies(raised.message[:_LONGEST], raised.remedies).rstrip(".")
        if raised
        else _raised_in_java(text) or _first_line(text) or type(error).__name__
    )


def _in_short(answer: re.Match[str]) -> str:
    """Return the code and message of a store's answer; the rest may contain the request, with a secret token."""
    parts = (pattern.search(answer[0]) for pattern in (_CODE, _MESSAGE))
    return ": ".join(" ".join(part[1].split()) for part in parts if part and part[1].strip())


def line_of_user(trace: str) -> str | None:
    """Return the innermost line of user code that Tidegate called, such as `hours.py:12 in process`, or None."""
    innermost, is_called = None, False
    for file, line, function in _FRAME.findall(trace):
        if _OURS.search(file):
            is_called = True
        elif is_called and not _INSTALLED.search(file):
            shown = _SHIPPED.sub("", file).removeprefix(os.path.join(os.getcwd(), ""))
            innermost = f"{shown}:{line} in {function}"
    return innermost


def is_of_user(error: BaseException) -> bool:
    """Return True if the user's code raised an error that was caught in Tidegate's code."""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    return any(not _OURS.search(file) and not _LIBRARY.search(file) for file in files)


def with_line(message: str, error: BaseException) -> str:
    """Return a message about an error with the line of user code that raised it, if one did."""
    return _with_line(message, "".join(traceback.format_exception(error)))


def _with_line(message: str, trace: str) -> str:
    line = line_of_user(trace)
    return message if line is None else f"{message} ({line})"


def remedy_for(error: BaseException) -> str | None:
    """Return a sentence with the remedy for a system failure, such as a full disk; None for any other error."""
    text = str(error)
    return next((way for cause, way in _REMEDIES if cause.search(text)), None)


def with_remedy(error: BaseException) -> str:
    """Return an error in one line, with its remedy if there is one. Messages of this package already have theirs."""
    if isinstance(error, TidegateError):
        return str(error)
    return ". ".join(filter(None, (in_words(error), remedy_for(error))))


def is_of_store(error: BaseException) -> bool:
    """Return True if a request of deltalake to an object store failed; then nothing is wrong with the table."""
    text = str(error)
    # A missing file is an answer of the store, not a failure.
    return _STORE.search(text) is not None and "404 Not Found" not in text


@contextmanager
def reported_as(doing: str, then: str) -> Iterator[None]:
    """Turn a failure of storage or Spark in the body into one clear error; errors of this package pass unchanged.

    Args:
        doing: the work that failed, such as `epoch 4 of duty can't be committed`.
        then: a sentence with the current state and what to do.

    Raises:
        TidegateError: if a task raised an error of this package, an error of that class with the same message.
    """
    try:
        yield
    except TidegateError:
        raise
    except Exception as error:
        if not is_system_failure(error):
            raise
        raised = _raised_in_task(str(error))
        kind = getattr(errors, raised.name, None) if raised else None
        if raised and isinstance(kind, type) and issubclass(kind, TidegateError):
            # As where tasks run in the driver: its message says what failed, and what to do.
            raise kind(raised.message, *raised.remedies) from error
        told = ". ".join(filter(None, (f"{doing}: {in_words(error)}", remedy_for(error), then)))
        raise TidegateError(told) from error


def is_system_failure(error: Exception) -> bool:
    """Return True if the system, deltalake or Spark failed, rather than code of this package or of the user."""
    package = type(error).__module__.partition(".")[0]
    return isinstance(error, OSError) or package in _BENEATH


class _Raised(NamedTuple):
    """The error of a Python task: the name of its class, its message, and the remedies that it sent."""

    name: str
    message: str
    remedies: tuple[Remedy, ...] = ()


@contextmanager
def remedies_as_data() -> Iterator[None]:
    """Send the remedies of an error in the body along as data: Spark's driver gets only its text.

    The driver, which knows whether a command or Python code shows the error, then spells them.
    """
    try:
        yield
    except TidegateError as error:
        if error.remedies:
            error.message += f"{_SENT}{json.dumps([asdict(remedy) for remedy in error.remedies])}"
            error.remedies = ()
        raise


def _received(name: str, text: str) -> _Raised:
    message, _, sent = text.partition(_SENT)
    remedies = json.loads(sent) if sent else ()
    given = (
        {**each, "act": Act(each["act"]), "key": None if each["key"] is None else tuple(each["key"])}
        for each in remedies
    )
    return _Raised(name, message, tuple(Remedy(**each) for each in given))


def _raised_in_task(text: str) -> _Raised | None:
    """Return the error that a Python task raised; None if the text has no traceback."""
    _, heading, trace = text.rpartition(_TRACEBACK)
    if not heading:
        return None
    for line in trace.splitlines():
        raised = re.match(r"([A-Za-z_][\w.]*)(?:: (.*))?$", line)
        if raised:
            name = raised[1].rpartition(".")[2]
            message = (raised[2] or "").strip()
            if issubclass(getattr(errors, name, object), TidegateError):
                return _received(name, message)
            message = message.rstrip(".")[:_LONGEST]
            return _Raised(name, _with_line(f"{name}: {message}".rstrip(": "), trace))
    return None


def _raised_in_java(text: str) -> str | None:
    """Return Java's exception and its innermost cause; None if the text does not describe a failed py4j call."""
    if _CALL_OF_JAVA not in text or _LOST_TASK.search(text):
        return None
    if "PythonWorkerFactory" in text and _NO_DAEMON.search(text):
        return "the process that starts Spark's Python workers has ended (killed, or out of memory?)"
    messages = [line.strip() for line in _JAVA_ERROR.findall(text)]
    return ": ".join(dict.fromkeys([*messages[:1], *messages[-1:]])).rstrip(".")[:_LONGEST] or None


def _first_line(text: str) -> str:
    if task := _LOST_TASK.search(text):
        return f"{task[1].strip().rstrip(':').rstrip()} (killed, or out of memory?)"
    lines = [line.strip() for line in _COLOURS.sub("", text).splitlines() if line.strip()]
    causes = [line.removeprefix(_CAUSE).strip() for line in lines[1:] if line.startswith(_CAUSE)]
    return ": ".join([*lines[:1], *causes]).rstrip(".")[:_LONGEST]
