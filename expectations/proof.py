"""What a check proved, for the next one to go on from: it looks at what came since, and at what that touches."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from tidegate.expectations.ledger import Taken
from tidegate.windowing.time import Millis


@dataclass(frozen=True, slots=True)
class Proof:
    """The tables at a check that found nothing critical.

    Args:
        epoch: that was checked.
        versions: of each table.
        fingerprint: of what the pipeline computed.
        watermark: of the epoch, int64 epoch milliseconds.
        lateness: the longest that a window was ever waited for, milliseconds.
        taken, final: elements that windows took, and those in final windows; None where nobody counts them.
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
        """Elements up to the check; None where nobody counts them."""
        return None if self.taken is None or self.final is None else Taken(self.taken, self.final)

    def to_json(self) -> str:
        """As table `quality` keeps it."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str | None) -> Proof | None:
        """Read a proof; None where there is none, or one that another version of tidegate wrote."""
        raw: Any = json.loads(text) if text else None
        if not isinstance(raw, dict) or raw.keys() != {*cls.__slots__}:
            return None
        return cls(**raw)
