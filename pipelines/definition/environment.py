"""The environment variables by which a process configures a command that it starts. It imports nothing."""

from __future__ import annotations

CONFIG_FILE = "TIDEGATE_CONFIG"
"""Path of tidegate.toml."""

LEASE_NOTE = "TIDEGATE_LEASE_NOTE"
"""Path of a file in which the command records the period for which it held the lease."""

ENDS_WITH_STDIN = "TIDEGATE_ENDS_WITH_STDIN"
"""If it is `1`, the command ends when its standard input does: see `pipelines/run/parent.py`."""
