"""Streams that start when a commit arrives: an asset of the source, and the trigger that watches the source for it.

The trigger runs in Airflow's triggerer, uses no worker while it waits, and starts no JVM. Each poll compares the source
with the pipeline's own position, so nothing depends on an event having been received, or on a triggerer having been
alive.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

from airflow.sdk import Asset, AssetWatcher
from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from tidegate.pipelines.observe.inspect.unread import Poll, SourceWatch
from tidegate.pipelines.storage.credentials import masked

POLL_SECONDS = 10.0
"""Time between two polls of a source."""

AGAIN_SECONDS = 900.0
"""Time after which a start without effect is retried: the default schedule of a stream."""

_THREADS = 4
"""Number of concurrent polls over all pipelines of a triggerer. A slow store delays these, but no other trigger."""


def commits_asset(config: str, pipeline: str, prefix: str = "") -> Asset:
    """Return the asset that changes when the source has commits that the pipeline's stream has not read."""
    trigger = CommitTrigger(config, pipeline, prefix)
    name = f"{prefix}{pipeline}__commits"
    watcher = AssetWatcher(name=name, trigger=trigger)
    return Asset(name=name, uri=f"tidegate://{prefix}{pipeline}/source", group="tidegate", watchers=[watcher])


class CommitTrigger(BaseEventTrigger):
    """Fires when a pipeline's source has unread data and no run is about to read it.

    Args:
        config: path of tidegate.toml.
        pipeline: a name in it.
        prefix: beginning of the ids of its DAGs.
    """

    def __init__(self, config: str, pipeline: str, prefix: str = "") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.config = config
        self.pipeline = pipeline
        self.prefix = prefix

    def serialize(self) -> tuple[str, dict[str, Any]]:
        names = ("config", "pipeline", "prefix")
        return "tidegate.pipelines.airflow.commits.CommitTrigger", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        polls = Polls(
            SourceWatch(Path(self.config), self.pipeline),
            partial(_active_runs, f"{self.prefix}{self.pipeline}"),
            self.log.info,
        )
        while True:
            # Reading tables blocks; other triggers share this loop.
            poll = partial(copy_context().run, polls.next_reason)
            reason = await asyncio.get_running_loop().run_in_executor(_threads(), poll)
            if reason is not None:
                yield TriggerEvent({"pipeline": self.pipeline, "reason": reason})  # type: ignore[no-untyped-call]
            await asyncio.sleep(POLL_SECONDS)


@dataclass
class Polls:
    """The polls of one trigger, each of which may give a reason to start the stream.

    A start is requested once. It is requested again when the pipeline has progressed and has unread data, or every
    AGAIN_SECONDS without progress: then the run fails with the reason, as a scheduled run would. Likewise, a watcher
    that can't poll requests a run, so that the run's failure is reported.

    Args:
        watch: polls the source.
        active_runs: returns the number of runs of a kind of DAG (`stream`, `backfill`) that are queued or running.
        tell: writes a line to the log.
        timer: a monotonic clock, seconds.
    """

    watch: SourceWatch
    active_runs: Callable[[str], int]
    tell: Callable[[str], None]
    timer: Callable[[], float] = time.monotonic
    _asked: tuple[float, tuple[int, int] | None] | None = field(default=None, init=False)
    _failing_since: float | None = field(default=None, init=False)
    _was_unread: bool = field(default=False, init=False)
    _last_line: str = field(default="", init=False)

    def next_reason(self) -> str | None:
        """Poll once, and return the reason to start the stream as text, or None if it should not be started.

        It never raises an error: Airflow would not restart the trigger.
        """
        try:
            poll = self.watch.poll()
            reason = self._reason(poll)
            self._failing_since = None
            return reason
        except Exception as error:  # Errors of stores and of Airflow have many types.
            return self._after_failure(masked(f"{type(error).__name__}: {error}"))

    def _reason(self, poll: Poll) -> str | None:
        was_unread, self._was_unread = self._was_unread, poll.unread is not None
        if poll.unread is None:
            self._asked = None
            self._say("nothing is unread")
            return None
        if self._is_asked(poll.epoch):
            return None
        if self.active_runs("stream"):
            self._say(f"{poll.unread}: a run of the stream is queued or running")
            return None
        # Between two intervals of a backfill, nobody holds the lease, and starting the stream would end the backfill.
        if not poll.is_taken_over and (not was_unread or self.active_runs("backfill")):
            self._say(f"{poll.unread}: waiting for the runs of the backfill")
            return None
        if self.watch.is_driven():
            self._say(f"{poll.unread}: a driver is running")
            return None
        return self._ask(poll.unread, poll.epoch)

    def _after_failure(self, problem: str) -> str | None:
        now = self.timer()
        self._say(f"can't poll: {problem}")
        if self._failing_since is None:
            self._failing_since = now
        if now - self._failing_since < AGAIN_SECONDS or self._is_asked(None):
            return None
        return self._ask(f"the source can't be watched: {problem}", None)

    def _is_asked(self, epoch: tuple[int, int] | None) -> bool:
        """Return True if a start was requested recently and the pipeline has not progressed since then."""
        if self._asked is None:
            return False
        at, before = self._asked
        return epoch == before and self.timer() - at < AGAIN_SECONDS

    def _ask(self, reason: str, epoch: tuple[int, int] | None) -> str:
        self._asked = (self.timer(), epoch)
        self._say(f"{reason}: starting the stream")
        return reason

    def _say(self, line: str) -> None:
        """Write a line to the log, unless the previous poll wrote the same line."""
        if line != self._last_line:
            self._last_line = line
            self.tell(line)


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="tidegate-polls")


def _active_runs(dags: str, kind: str) -> int:
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    # A restart also runs the stream.
    kinds = ("stream", "restart") if kind == "stream" else (kind,)
    return sum(RuntimeTaskInstance.get_dr_count(f"{dags}__{each}", states=["queued", "running"]) for each in kinds)
