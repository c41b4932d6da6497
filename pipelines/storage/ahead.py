"""Calls that wait for a store, made at the same time while their results are used in order, in bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from typing import TypeVar

AT_ONCE = 32
"""Largest number of calls at the same time."""
_HELD = 20_000
"""Largest weight of the results that wait to be used. A file of a log's entry weighs 1 and takes about 2 KB."""

Result = TypeVar("Result")


def ahead(
    calls: Iterable[Callable[[], Result]],
    weigh: Callable[[Result], int] = lambda result: 1,
    at_first: int = 1,
    at_once: int = AT_ONCE,
    leave: Callable[[Result], object] = lambda result: None,
) -> Iterator[Callable[[], Result]]:
    """Yield, for each call in order, a function that returns its result or raises its error.

    The first call is made alone, and the number of calls at the same time doubles with each result that is used, so
    that a caller who needs few results causes few calls.

    Args:
        calls: the calls.
        weigh: returns the weight of a result. Fewer calls are made at the same time if results are heavy.
        at_first: number of calls to begin with.
        at_once: largest number of calls at the same time; 1, for a local disk, makes each call when it is needed.
        leave: called with each result that the caller does not use, for what has to be closed.
    """
    todo, waiting = iter(calls), deque[Future[Result]]()
    allowed, used, weight = min(at_first, at_once), 0, 0
    threads = ThreadPoolExecutor(at_once)
    try:
        while True:
            while len(waiting) < allowed and (call := next(todo, None)) is not None:
                # Starting a thread for a single call takes longer than the call to a local disk.
                waiting.append(_called(call) if allowed == 1 else threads.submit(copy_context().run, call))
            if not waiting:
                return
            wait([waiting[0]])
            future = waiting.popleft()
            if future.exception() is None:
                used, weight = used + 1, weight + weigh(future.result())
            yield future.result
            allowed = max(1, min(at_once, 2 * allowed, _HELD * max(1, used) // max(1, weight)))
    finally:
        threads.shutdown(wait=True, cancel_futures=True)
        for future in waiting:
            if not future.cancelled() and future.exception() is None:
                leave(future.result())


def _called(call: Callable[[], Result]) -> Future[Result]:
    future = Future[Result]()
    try:
        future.set_result(call())
    except Exception as error:
        future.set_exception(error)
    return future
