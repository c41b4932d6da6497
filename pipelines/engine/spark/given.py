"""A session of Spark that runs already, as the engine: that of a notebook, a job of Databricks or `spark-submit`.

Runs use another session of the same process of Spark, with the settings of the given one and with ours. Sessions share
no settings, views or functions, so the given one stays as it was.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast
from weakref import WeakKeyDictionary

from tidegate.pipelines.config import Config
from tidegate.pipelines.engine.spark.connect import is_connect
from tidegate.pipelines.engine.spark.engine import SparkEngine
from tidegate.pipelines.engine.spark.session import SESSION
from tidegate.pipelines.engine.spark.shipping import pack, unknown_modules
from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.failures import in_words

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

Session: TypeAlias = "SparkSession"

_sent: WeakKeyDictionary[SparkContext, set[str]] = WeakKeyDictionary()
"""By context of Spark, names of the files with code that its workers have."""


class BorrowedSession(SparkEngine):
    """A clone of a session that somebody else started, as the engine of a run; `close` gives it back.

    Args:
        config: the project, which has the session.
    """

    def __init__(self, config: Config) -> None:
        self._given: Session = config.session
        self._active = self._given if is_connect(self._given) else type(self._given).getActiveSession()
        super().__init__(_cloned(self._given))
        self._send_code(config.work_folder / "shipped")

    def close(self) -> None:
        """Leave the clone. A clone that made frames is the active session of the thread, so the former one is again."""
        if is_connect(self._given):
            self.session.stop()
        else:
            # The public call that makes a session active.
            (self._active or self._given).createDataFrame([], "nothing int")

    def _send_code(self, folder: Path) -> None:
        """Send the modules of this process that workers may not have."""
        if is_connect(self._given):
            self.session.addArtifacts(str(pack(unknown_modules(sys.modules, None), folder)), pyfile=True)
            return
        context = self._given.sparkContext
        if not (modules := unknown_modules(sys.modules, context.master)):
            return
        file = pack(modules, folder)
        if file.name not in _sent.setdefault(context, set()):
            with _same_path():
                context.addPyFile(str(file))
            _sent[context].add(file.name)


def check_session(session: object) -> None:
    """Check that a value is a session of Spark.

    Raises:
        UsageError: it is something else.
    """
    from pyspark.sql import SparkSession

    if not isinstance(session, SparkSession) and not is_connect(cast("Session", session)):
        raise UsageError(f"spark: {type(session).__name__} is no session of Spark: give the value that is named spark")


def _cloned(session: Session) -> Session:
    """Return a session in the same process of Spark, with the settings of the given one, and with ours.

    Raises:
        UsageError: the given session was stopped, or its Spark can't make another one.
    """
    if is_connect(session):
        if not hasattr(session, "cloneSession"):
            raise UsageError(
                "spark: this version of Spark Connect can't clone a session: install PySpark 4.1 or newer, or leave "
                "`spark` out and name the server in SPARK_REMOTE"
            )
        clone: Session = session.cloneSession()
        for name, value in SESSION.items():
            clone.conf.set(name, value)
        return clone
    try:
        clone = session.newSession()
        settings = session.conf.getAll
    except Exception as error:
        raise UsageError(f"spark: this session can't be used: {in_words(error)}. Give one that runs") from error
    # Such as credentials of an object store, which notebooks set in their session.
    present = clone.conf.getAll
    for name, value in {**settings, **SESSION}.items():
        if present.get(name) != str(value) and clone.conf.isModifiable(name):
            clone.conf.set(name, value)
    return clone


@contextmanager
def _same_path() -> Iterator[None]:
    """Keep Python's path, where `addPyFile` would put a copy of the code before the code itself."""
    before = list(sys.path)
    try:
        yield
    finally:
        sys.path[:] = before
