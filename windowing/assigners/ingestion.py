"""Windows of ingestion time: by when an element reached the source, which is its source commit's time.

The clock that an operator sees before the elements of a source commit is the time of that commit, in
a stream and in every replay of it. So ingestion time and processing time are one clock here, and these
are names for the same assigners (docs/decisions/0011-ingestion-time.md).
"""

from tidegate.windowing.assigners.session import DynamicProcessingTimeSessionWindows, ProcessingTimeSessionWindows
from tidegate.windowing.assigners.sliding import SlidingProcessingTimeWindows
from tidegate.windowing.assigners.tumbling import TumblingProcessingTimeWindows

TumblingIngestionTimeWindows = TumblingProcessingTimeWindows
SlidingIngestionTimeWindows = SlidingProcessingTimeWindows
IngestionTimeSessionWindows = ProcessingTimeSessionWindows
DynamicIngestionTimeSessionWindows = DynamicProcessingTimeSessionWindows
