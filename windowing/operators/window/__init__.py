"""The window operator: WindowOperator and its parts."""

from tidegate.windowing.operators.window.operator import WindowOperator
from tidegate.windowing.operators.window.skipped import LATE, MERGED_WINDOW_LATE, WINDOWS_PASSED

__all__ = ["LATE", "MERGED_WINDOW_LATE", "WINDOWS_PASSED", "WindowOperator"]
