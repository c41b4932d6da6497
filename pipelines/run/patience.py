"""The wait of a command for a driver that ends by itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from tidegate.pipelines.run.lease import LeaseRow

_WAIT_SECONDS = 1.0


@dataclass
class Patience:
    """Decides whether a command waits for the holder of the lease, which calls it again and again.

    Args:
        seconds: longest time to wait, from now on.
        command: the only work in the lease that is waited for.
        tell: called once for each holder that is waited for.
        is_ended: returns True once the command should wait no longer.
        timer: returns seconds that only grow.
        sleep: waits for so many seconds.
    """

    seconds: float
    command: str
    tell: Callable[[str], None]
    is_ended: Callable[[], bool] = lambda: False
    timer: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _until: float = field(init=False)
    _announced: set[str] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self._until = self.timer() + self.seconds

    def __call__(self, holder: LeaseRow) -> bool:
        """Wait a second and return True, or return False at once if there is nothing to wait for."""
        if holder.command != self.command or self.timer() >= self._until or self.is_ended():
            return False
        if holder.run not in self._announced:
            self._announced.add(holder.run)
            self.tell(f"waiting for {holder}")
        self.sleep(_WAIT_SECONDS)
        return True
