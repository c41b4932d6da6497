"""An epoch of any operator: elements, state rows and a timeline go in, an outcome comes out.

The columnar operator and the row operator share this interface. The row operator runs any computation: windows, process
functions and joins.
"""

from typing import TYPE_CHECKING

from tidegate.exports import exports

if TYPE_CHECKING:
    from tidegate.windowing.epochs.elements import Elements as Elements
    from tidegate.windowing.epochs.outcome import EpochOperator as EpochOperator, EpochOutcome as EpochOutcome
    from tidegate.windowing.epochs.timeline import Timeline as Timeline
else:
    __all__, __getattr__, __dir__ = exports(
        __name__,
        {
            ".elements": "Elements",
            ".outcome": "EpochOperator EpochOutcome",
            ".timeline": "Timeline",
        },
    )
