"""What an error names as a remedy, as a value, so that a test can follow it."""

from __future__ import annotations

import pytest

from tidegate.pipelines.errors import TidegateError
from tidegate.pipelines.remedy import Act, Remedy


def remedy_of(raised: pytest.ExceptionInfo[TidegateError], act: Act) -> Remedy:
    """Return the only remedy of a kind that an error names."""
    (found,) = (remedy for remedy in raised.value.remedies if remedy.act is act)
    return found
