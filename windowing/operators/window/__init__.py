"""The window operator: WindowOperator and its parts."""

from tidegate.windowing.operators.window.operator import LATE, MERGED_WINDOW_LATE, WINDOWS_PASSED, WindowOperator

__all__ = ["LATE", "MERGED_WINDOW_LATE", "WINDOWS_PASSED", "WindowOperator"]
