"""Several streams in one process: one engine, and a lease for each. So twenty small streams need only one driver."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.definition.names import listed
from tidegate.pipelines.engine.base import Engine
from tidegate.pipelines.engine.choose import engine_of, require_engine
from tidegate.pipelines.errors import LEASE_HELD, OTHER, TidegateError, UsageError
from tidegate.pipelines.observe.report.answer import Answer, Shown
from tidegate.pipelines.project.progress import Teller
from tidegate.pipelines.project.stream import Streamed, StreamOptions, StreamRun, entered
from tidegate.pipelines.run.stopping import StopRequest
from tidegate.pipelines.storage.credentials import masked

_SECOND = 1.0
"""Longest time between two checks for a stop request."""
_AGAIN_SECONDS = 60.0
"""Time after which a failed stream is retried while others run, if a retry may succeed."""
_MAY_SUCCEED = (OTHER, LEASE_HELD)


@dataclass(frozen=True, slots=True)
class StreamedTogether(Answer):
    """The outcome of several streams in one process.

    Args:
        streams: the outcomes of those that succeeded.
        failed: by pipeline, the error of each that failed.
    """

    streams: tuple[Streamed, ...]
    failed: Mapping[str, TidegateError]

    def to_dict(self) -> dict[str, Any]:
        errors = {name: {"message": str(error), "exit_code": error.exit_code} for name, error in self.failed.items()}
        return {"streams": [each.to_dict() for each in self.streams], "failed": errors}

    def shown(self) -> Iterator[Shown]:
        for each in self.streams:
            yield from each.shown()
        for name, error in self.failed.items():
            yield f"{name}: failed: {error}"

    def require(self) -> StreamedTogether:
        """Return this outcome, provided that all streams succeeded.

        Raises: TidegateError: some failed. Its exit code is theirs if they agree, else 1.
        """
        if not self.failed:
            return self
        codes = {error.exit_code: type(error) for error in self.failed.values()}
        kind = next(iter(codes.values())) if len(codes) == 1 else TidegateError
        raise kind("; ".join(f"{name}: {error}" for name, error in self.failed.items()))


def stream_together(
    config: Config,
    pipelines: Sequence[str],
    options: StreamOptions,
    stop: StopRequest,
    teller_of: Callable[[str], Teller],
    timer: Callable[[], float] = time.monotonic,
) -> StreamedTogether:
    """Run several pipelines as streams in this process, with one engine and a lease for each.

    Their epochs run one after the other. A failure does not stop the others. With an interval, a stream is tried again
    after a minute if a retry may succeed.

    Raises:
        UsageError: a name is unknown or given twice.
    """
    if doubled := sorted(name for name, count in Counter(pipelines).items() if count > 1):
        raise UsageError(f"{listed(doubled)} is named twice: name each pipeline once")
    for name in pipelines:
        config.entry(name)
    require_engine(config, "a stream")
    # A process that doesn't need the engine doesn't start it.
    engine = engine_of(config, f"streams {', '.join(pipelines)}")
    try:
        return _Together(config, options, stop, teller_of, engine, timer).run(pipelines)
    finally:
        engine.close()


class _Together:
    """Several running streams: see `stream_together`."""

    def __init__(
        self,
        config: Config,
        options: StreamOptions,
        stop: StopRequest,
        teller_of: Callable[[str], Teller],
        engine: Engine,
        timer: Callable[[], float],
    ) -> None:
        self._config, self._options, self._stop = config, options, stop
        self._teller_of, self._engine, self._timer = teller_of, engine, timer
        self._failed: dict[str, TidegateError] = {}
        self._done: dict[str, Streamed] = {}
        self._entered: dict[str, tuple[ExitStack, StreamRun]] = {}
        self._due: dict[str, float] = {}

    def run(self, pipelines: Sequence[str]) -> StreamedTogether:
        if self._options.every is None:
            for name in pipelines:
                if not self._stop.is_made():
                    self._attempt(name, lambda run: run.to_its_end())
                    self._end(name)
        else:
            self._continuously(pipelines, self._options.every.total_seconds())
        return StreamedTogether(tuple(self._done.values()), dict(self._failed))

    def _continuously(self, pipelines: Sequence[str], seconds: float) -> None:
        self._due = dict.fromkeys(pipelines, self._timer())
        try:
            while self._due and not self._stop.is_made():
                for name in [name for name, due in self._due.items() if due <= self._timer()]:
                    self._due[name] = self._timer() + seconds
                    if not self._attempt(name, StreamRun.poll) and name not in self._failed:
                        # Somebody asked this one to stop.
                        self._end(name)
                        del self._due[name]
                    if self._stop.is_made():
                        return
                if self._due:
                    self._stop.wait(min(_SECOND, max(0.0, min(self._due.values()) - self._timer())))
        finally:
            for name in [*self._entered]:
                self._end(name)

    def _attempt(self, name: str, act: Callable[[StreamRun], object]) -> bool:
        """Let a stream act, entering it first if necessary; return True if it should continue."""
        try:
            if name not in self._entered:
                stack = ExitStack()
                arguments = (self._config, name, self._options, self._stop, self._teller_of(name), self._engine)
                self._entered[name] = (stack, stack.enter_context(entered(*arguments)))
            goes_on = act(self._entered[name][1])
        except Exception as error:  # A failure of one stream must not stop the others.
            self._fail(name, error)
            return False
        self._failed.pop(name, None)
        return goes_on is not False

    def _fail(self, name: str, error: Exception) -> None:
        if (entered := self._entered.pop(name, None)) is not None:
            try:
                # If the driver knows why an engine ended, that replaces the resulting error.
                entered[0].__exit__(type(error), error, error.__traceback__)
            except Exception as better:
                error = better
        failure = error if isinstance(error, TidegateError) else TidegateError(f"{type(error).__name__}: {error}")
        self._failed[name] = failure
        may_succeed = failure.exit_code in _MAY_SUCCEED
        again = f"; tried again in {_AGAIN_SECONDS:.0f} s" if may_succeed and name in self._due else ""
        self._teller_of(name).say(f"{name} failed: {masked(str(failure))}{again}")
        if name in self._due:
            self._due[name] = self._timer() + _AGAIN_SECONDS
            if not may_succeed:
                del self._due[name]

    def _end(self, name: str) -> None:
        """Release the lease of a stream, and record its outcome."""
        if (entered := self._entered.pop(name, None)) is not None:
            entered[0].close()
            self._done[name] = Streamed(name, tuple(entered[1].epochs))
