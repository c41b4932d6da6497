"""The proof of a check that passed. With it the next check looks only at newer rows and the windows they touch."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from tidegate.expectations.ledger import Taken
from tidegate.windowing.time import Millis


@dataclass(frozen=True, slots=True)
class Proof:
    """The tables at a check in which no critical expectation failed.

    Args:
        epoch: the checked epoch.
        versions: version of each table.
        fingerprint: fingerprint of the pipeline's computation.
        watermark: watermark of the epoch, int64 epoch milliseconds.
        lateness: the longest wait for a window after its end so far, milliseconds.
        taken, final: numbers of elements that windows took, and of those in final windows; None if they can't be
            counted.
    """

    epoch: int
    versions: dict[str, int]
    fingerprint: str
    watermark: Millis
    lateness: Millis
    taken: int | None
    final: int | None

    @property
    def taken_before(self) -> Taken | None:
        """Return the numbers of elements up to the check; None if they can't be counted."""
        return None if self.taken is None or self.final is None else Taken(self.taken, self.final)

    def to_json(self) -> str:
        """Return the proof as JSON, for table `quality`."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str | None) -> Proof | None:
        """Read a proof; return None if there is none, or if another version of tidegate wrote it."""
        raw: Any = json.loads(text) if text else None
        if not isinstance(raw, dict) or raw.keys() != {*cls.__slots__}:
            return None
        return cls(**raw)
