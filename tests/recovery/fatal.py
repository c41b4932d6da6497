"""A user's function that fails where it runs: in a task, when a window fires."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from tidegate.windowing import ProcessWindowFunction


@dataclass(frozen=True)
class Fatal(ProcessWindowFunction):
    """Raises, or kills its process.

    Args:
        how: `raise` or `kill`.
    """

    how: str

    result_type: ClassVar[Any] = pa.struct([("events", pa.int64())])

    def process(self, key: Any, ctx: Any, elements: Sequence[Any]) -> Iterable[Any]:
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError(f"no result for {len(elements)} elements")
