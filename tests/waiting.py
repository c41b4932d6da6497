"""Waits for what another process does: polls a state, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

PATIENCE_SECONDS = 300.0


def wait_until(
    found: Callable[[], Any], what: str, patience: float = PATIENCE_SECONDS, between_looks: float = 1.0
) -> Any:
    """Wait for a value, and return it; fail if it does not come in time.

    Args:
        found: returns the value, or something false until there is one.
        what: name of the value, for the failure message.
        patience: seconds after which it fails.
        between_looks: seconds from one look to the next. Each may be a request to who works for the test meanwhile.
    """
    deadline = time.monotonic() + patience
    while not (value := found()):
        assert time.monotonic() < deadline, f"{what} did not come within {patience:.0f} s"
        time.sleep(between_looks)
    return value
