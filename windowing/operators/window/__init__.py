"""The window operator: WindowOperator and its parts."""

from tidegate.windowing.operators.records import LATE, MERGED_WINDOW_LATE, WINDOWS_PASSED
from tidegate.windowing.operators.window.operator import WindowOperator

__all__ = ["LATE", "MERGED_WINDOW_LATE", "WINDOWS_PASSED", "WindowOperator"]
