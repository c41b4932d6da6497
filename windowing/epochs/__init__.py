"""An epoch of any operator: elements, state rows and a timeline go in, an outcome comes out.

The columnar operator and the row operator share this interface. The row operator runs any computation: windows, process
functions and joins.
"""

from tidegate.windowing.epochs.elements import Elements
from tidegate.windowing.epochs.outcome import EpochOperator, EpochOutcome
from tidegate.windowing.epochs.timeline import Timeline

__all__ = ["Elements", "EpochOperator", "EpochOutcome", "Timeline"]
