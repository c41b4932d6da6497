"""An existing Spark session as the engine: that of a notebook, a Databricks job or `spark-submit`.

Runs use another session of the same Spark process, with the settings of the given one and with Tidegate's. Sessions
share no settings, views or functions, so the given one is not changed. A Spark Connect client can't create another
session on its server, so a run changes four settings of the given session there, and `close` resets them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast
from weakref import WeakKeyDictionary

from tidegate.pipelines.definition.config import Config
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

_sent: WeakKeyDictionary[SparkContext | SparkSession, set[str]] = WeakKeyDictionary()
"""Names of the code files that workers have, by Spark context or Connect session."""


class BorrowedSession(SparkEngine):
    """A session next to a given one, as the engine of a run. `close` leaves the given session running.

    Args:
        config: the project, which has the session.
    """

    def __init__(self, config: Config) -> None:
        self._given: Session = config.session
        self._before: dict[str, str | None] = {}
        if is_connect(self._given):
            super().__init__(self._given)
            self._set_ours()
        else:
            self._active = type(self._given).getActiveSession() or self._given
            super().__init__(_beside(self._given))
        self._send_code(config.work_folder / "shipped")

    def close(self) -> None:
        """Leave the given session as it was before."""
        for name, value in self._before.items():
            if value is None:
                self._given.conf.unset(name)
            else:
                self._given.conf.set(name, value)
        if not is_connect(self._given):
            # A session that created frames becomes the thread's active one; this public call activates another one.
            self._active.createDataFrame([], "nothing int")

    def _set_ours(self) -> None:
        settings = self._given.conf.getAll
        for name, value in SESSION.items():
            self._before[name] = settings.get(name)
            self._given.conf.set(name, value)

    def _send_code(self, folder: Path) -> None:
        if is_connect(self._given):
            file = pack(unknown_modules(sys.modules, None), folder)
            if file.name not in _sent.setdefault(self._given, set()):
                self._given.addArtifacts(str(file), pyfile=True)
                _sent[self._given].add(file.name)
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
    """Check that a value is a Spark session.

    Raises:
        UsageError: the value is something else.
    """
    from pyspark.sql import SparkSession

    if not isinstance(session, SparkSession) and not is_connect(cast("Session", session)):
        raise UsageError(f"spark: {type(session).__name__} is not a Spark session: give the value named spark")


def _beside(session: Session) -> Session:
    """Return another session of the same Spark process, with the settings of the given one and Tidegate's.

    Raises:
        UsageError: the given session was stopped, or its Spark can't create another one.
    """
    try:
        beside = session.newSession()
        settings, present = session.conf.getAll, beside.conf.getAll
    except Exception as error:
        raise UsageError(f"spark: this session can't be used: {in_words(error)}. Give one that is running") from error
    # These are, for example, credentials of an object store that a notebook set in its session.
    for name, value in {**settings, **SESSION}.items():
        if present.get(name) != str(value) and beside.conf.isModifiable(name):
            beside.conf.set(name, value)
    return beside


@contextmanager
def _same_path() -> Iterator[None]:
    """Preserve Python's path: `addPyFile` would insert a copy of the code before the code itself."""
    before = list(sys.path)
    try:
        yield
    finally:
        sys.path[:] = before
