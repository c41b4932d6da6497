"""Ends a command with the process that started it, even if that process was killed.

The parent holds the writing end of a pipe, whose reading end is the command's standard input, and writes nothing to it.
When the parent ends, for whatever reason, the operating system closes the pipe. A command that handles SIGTERM, such as
a stream, then gets that signal and some seconds to finish. Any other command is killed with its children. Only the
standard library is used.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
import time

from tidegate.pipelines.definition.environment import ENDS_WITH_STDIN

GRACE_SECONDS = 20.0
"""Time between SIGTERM and SIGKILL, in which a stream may finish its epoch."""


def end_with_parent(grace: float = GRACE_SECONDS) -> None:
    """Watch standard input if the parent asked for it; the children of this process get an empty standard input.

    Args:
        grace: seconds between SIGTERM and SIGKILL.
    """
    if os.environ.pop(ENDS_WITH_STDIN, None) != "1":
        return
    # Neither a child nor a library may read from the pipe, or keep it open.
    pipe, nothing = os.dup(0), os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    ended = threading.Event()
    # It runs after the exit functions that are registered later.
    atexit.register(lambda: _kill_session() if ended.is_set() else None)
    threading.Thread(target=_end_after, args=(pipe, ended, grace), name="parent", daemon=True).start()


def _end_after(pipe: int, ended: threading.Event, grace: float) -> None:
    while os.read(pipe, 1024):
        pass
    # The parent also read the output. Writing to it would fail in the middle of the last epoch.
    nothing = os.open(os.devnull, os.O_WRONLY)
    for output in (1, 2):
        os.dup2(nothing, output)
    ended.set()
    # Without a handler, SIGTERM would end this process and leave its children.
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(grace)
    _kill_session()


def _kill_session() -> None:
    """Kill this process and, if the parent started it in a session of its own, the processes that it started."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
