"""The columnar operator: built-in windows as arrays, with the semantics of the row operator."""

from windowing.columnar.elements import Elements, Outcome
from windowing.columnar.operator import ColumnarOperator
from windowing.columnar.passes import run_in_passes
from windowing.columnar.plan import OperatorChoice, choose_operator
from windowing.columnar.timeline import Timeline

__all__ = ["ColumnarOperator", "Elements", "OperatorChoice", "Outcome", "Timeline", "choose_operator", "run_in_passes"]
