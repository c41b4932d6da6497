"""Requests to a running stream: it reopens late rows between two of its epochs, because only it holds the lease.

A request is a file in folder `requests` of the pipeline, and so is its answer, so that driver and asker may be on
different hosts. A stream that dies before it answers leaves the request; the asker then finds the lease free and does
the work itself. Rows are never reopened twice, so a request that is served twice does no harm.
"""

from __future__ import annotations

import json
import math
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from tidegate.pipelines.errors import LeaseHeld, Refused, TidegateError, UsageError
from tidegate.pipelines.manifest import Manifest
from tidegate.pipelines.reopen.recompute_plan import Selection
from tidegate.pipelines.tables.counters import RETRACTED
from tidegate.pipelines.tables.pipeline_tables import REQUESTS, PipelineTables
from tidegate.windowing.time import MAX_TIMESTAMP

if TYPE_CHECKING:
    from tidegate.pipelines.run.lease import LeaseRow

_LOOK_SECONDS = 1.0
_SERVE_SECONDS = 5.0
_ANSWER_SECONDS = 600.0
"""Time for which an answer stays. Its asker looks for it every second."""
_ASKED, _ANSWERED = "reopen-", "answer-"

Reopen = Callable[[Selection], tuple[Manifest | None, int]]
"""Reopens late rows; returns the manifest of the epoch, if there was one, and the number of late rows."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of a reopening.

    Args:
        epoch: the epoch that reopened rows; None if there was nothing to do.
        rows: number of late rows that were reopened.
        panes, withdrawn: numbers of panes that were put out, and retracted.
        error: text of a refusal; None if there was none.
        exit_code: exit code of the refusal.
    """

    epoch: int | None = None
    rows: int = 0
    panes: int = 0
    withdrawn: int = 0
    error: str | None = None
    exit_code: int = 0

    def check(self) -> None:
        """Raise the refusal, if it is one.

        Raises:
            TidegateError: the stream refused, with the exit code that the command itself would have had.
        """
        if self.error is not None:
            kinds = {kind.exit_code: kind for kind in (UsageError, Refused)}
            raise kinds.get(self.exit_code, TidegateError)(self.error)

    @classmethod
    def of(cls, manifest: Manifest | None, rows: int) -> Answer:
        """Return the outcome of an epoch."""
        if manifest is None:
            return cls()
        return cls(manifest.epoch, rows, manifest.counters["fired_late"], manifest.counters[RETRACTED])


@dataclass
class Asker:
    """Waits for the lease of a pipeline; meanwhile it asks the stream that holds the lease.

    Args:
        tables: the pipeline's tables.
        selection: the late rows to reopen.
        patience: seconds to wait for a stream; 0 asks nobody.
        pause: waits for so many seconds.
        timer: returns seconds that only grow.
    """

    tables: PipelineTables
    selection: Selection
    patience: float
    pause: Callable[[float], object] = time.sleep
    timer: Callable[[], float] = time.monotonic
    answer: Answer | None = field(default=None, init=False)
    _request: str | None = field(default=None, init=False)
    _until: float | None = field(default=None, init=False)

    def waits_for(self, holder: LeaseRow) -> bool:
        """Return True to look again if the lease is free; False once there is an answer, or nobody to wait for."""
        if not self.patience or not holder.command.startswith("stream"):
            return False
        if self._request is None:
            self._request, self._until = ask(self.tables, self.selection), self.timer() + self.patience
        self.answer = answer_to(self.tables, self._request)
        if self.answer is not None or self._until is None or self.timer() >= self._until:
            return False
        self.pause(_LOOK_SECONDS)
        return True

    def close(self) -> None:
        """Take the request back, if there is one."""
        if self._request is not None:
            forget_request(self.tables, self._request)


def ask(tables: PipelineTables, selection: Selection) -> str:
    """Leave a request for the stream of a pipeline, and return its id."""
    request = uuid.uuid4().hex
    tables.warehouse.replace_file(_path(tables), f"{_ASKED}{request}.json", json.dumps(asdict(selection)).encode())
    return request


def answer_to(tables: PipelineTables, request: str) -> Answer | None:
    """Return the answer to a request; None while there is none."""
    name = f"{_ANSWERED}{request}.json"
    if not _is_there(tables, name):
        return None
    return Answer(**json.loads(tables.warehouse.read_text(_path(tables), name)))


def forget_request(tables: PipelineTables, request: str) -> None:
    """Remove a request and its answer, as far as they are there."""
    for name in (f"{_ASKED}{request}.json", f"{_ANSWERED}{request}.json"):
        if _is_there(tables, name):
            _remove(tables, name)


@dataclass
class Desk:
    """Serves the requests to a stream between its epochs, but looks for them only every few seconds.

    On an object store, a look is a listing: after every epoch it would be one more request that mostly finds nothing.

    Args:
        tables: the pipeline's tables.
        reopen: reopens late rows.
        timer: returns seconds that only grow.
    """

    tables: PipelineTables
    reopen: Reopen
    timer: Callable[[], float] = time.monotonic
    _looked: float = field(default=-math.inf, init=False)
    _answered: dict[str, float] = field(default_factory=dict, init=False)

    def serve(self) -> list[Answer]:
        """Serve the requests if a look is due, and return the answers; see `serve`."""
        if (now := self.timer()) < self._looked + _SERVE_SECONDS:
            return []
        self._looked = now
        self._remove_unread(now)
        return serve(self.tables, self.reopen)

    def _remove_unread(self, now: float) -> None:
        """Remove the answers that nobody has read for so long that their askers must be gone."""
        names = self.tables.warehouse.names(_path(self.tables))
        self._answered = {name: self._answered.get(name, now) for name in names if name.startswith(_ANSWERED)}
        for name, since in self._answered.items():
            if now - since > _ANSWER_SECONDS:
                _remove(self.tables, name)


def serve(tables: PipelineTables, reopen: Reopen) -> list[Answer]:
    """Serve the requests to a stream, one after the other, and return the answers. A refusal is an answer too.

    The asker may take its request back at any time; then nobody reads the answer, and it goes as well.

    Args:
        tables: the pipeline's tables.
        reopen: reopens late rows.

    Raises:
        LeaseHeld: the stream has lost its lease.
    """
    names = tables.warehouse.names(_path(tables))
    answers = []
    for name in sorted(name for name in names if name.startswith(_ASKED) and name.endswith(".json")):
        request = name.removeprefix(_ASKED).removesuffix(".json")
        try:
            selection = _selection(tables, name)
            if selection is None:
                continue
            answer = Answer.of(*reopen(selection))
        except LeaseHeld:
            raise
        except TidegateError as error:
            answer = Answer(error=str(error), exit_code=error.exit_code)
        answers.append(answer)
        # The answer is there before the request goes, so that the asker misses neither.
        tables.warehouse.replace_file(_path(tables), f"{_ANSWERED}{request}.json", json.dumps(asdict(answer)).encode())
        if _is_there(tables, name):
            _remove(tables, name)
        else:
            forget_request(tables, request)
    return answers


def _is_there(tables: PipelineTables, name: str) -> bool:
    return name in tables.warehouse.names(_path(tables))


def _remove(tables: PipelineTables, name: str) -> None:
    """Remove a file, which asker or stream may remove at the same moment."""
    with suppress(FileNotFoundError):
        tables.warehouse.delete_file(_path(tables), name)


def _selection(tables: PipelineTables, name: str) -> Selection | None:
    """Return the selection of a request; None if the request was taken back.

    Raises:
        UsageError: the file is no request, as this version of tidegate writes them.
    """
    try:
        fields: dict[str, Any] = json.loads(tables.warehouse.read_text(_path(tables), name))
        key, start, end = fields["key"], fields["start"], fields["end"]
        if not (key is None or (isinstance(key, list) and all(isinstance(part, str) for part in key))):
            raise ValueError("its key is no list of texts")
        if not all(bound is None or (type(bound) is int and abs(bound) <= MAX_TIMESTAMP) for bound in (start, end)):
            raise ValueError("its start or end is no time in milliseconds")
        return Selection(None if key is None else tuple(key), start, end)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, RecursionError, UsageError) as error:
        raise UsageError(
            f"request {name} in folder {_path(tables)} can't be read ({error!r}): run `tidegate late reopen "
            f"{tables.pipeline} --ask-stream` again, with the version of tidegate that the stream runs"
        ) from error


def _path(tables: PipelineTables) -> str:
    return tables.path(REQUESTS)
