"""The columnar operator: built-in windows as arrays, with the semantics of the row operator."""

from tidegate.windowing.columnar.operator import (
    ColumnarOperator,
    joined_outcomes,
    run_in_passes,
    run_in_pieces,
)
from tidegate.windowing.columnar.plan import OperatorChoice, choose_operator
from tidegate.windowing.columnar.window_join import ColumnarWindowJoin

__all__ = [
    "ColumnarOperator",
    "ColumnarWindowJoin",
    "OperatorChoice",
    "choose_operator",
    "joined_outcomes",
    "run_in_passes",
    "run_in_pieces",
]
