"""Ends the process at a step of an epoch, by a signal that can't be caught."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable


def killing_after(step: str, epoch: int, delay: int) -> Callable[[str], None]:
    """Return a listener to steps that kills this process, `delay` milliseconds after a step of the n-th epoch."""
    planned: list[str] = []

    def kill() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def tell(done: str) -> None:
        if done == "planned":
            planned.append(done)
        if done == step and len(planned) == epoch:
            threading.Timer(delay / 1000, kill).start() if delay else kill()

    return tell
