"""The columnar operator: built-in windows as arrays, with the semantics of the row operator."""

from typing import TYPE_CHECKING

from tidegate.exports import exports

if TYPE_CHECKING:
    from tidegate.windowing.columnar.operator import (
        ColumnarOperator as ColumnarOperator,
        joined_outcomes as joined_outcomes,
        run_in_passes as run_in_passes,
        run_in_pieces as run_in_pieces,
    )
    from tidegate.windowing.columnar.parts import Combining as Combining, stays_single as stays_single
    from tidegate.windowing.columnar.plan import OperatorChoice as OperatorChoice, choose_operator as choose_operator
    from tidegate.windowing.columnar.window_join import ColumnarWindowJoin as ColumnarWindowJoin
else:
    __all__, __getattr__, __dir__ = exports(
        __name__,
        {
            ".operator": "ColumnarOperator joined_outcomes run_in_passes run_in_pieces",
            ".parts": "Combining stays_single",
            ".plan": "OperatorChoice choose_operator",
            ".window_join": "ColumnarWindowJoin",
        },
    )
