"""The steps of an epoch after which a test can stop it, as the driver tells them."""

from __future__ import annotations

STEPS = (
    "planned",
    "operated",
    "committed",
    "published results",
    "published late",
    "published rejects",
    "published epochs",
)
