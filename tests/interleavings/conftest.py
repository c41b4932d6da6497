"""`--schedule` repeats one schedule."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--schedule",
        help="play this schedule of tests/interleavings again, as a failure prints it: '~abba' for drivers, and for "
        "commands 'stream, vacuum: ~abba'",
    )
