"""Windows of ingestion time, which is the time of the source commit that brought an element.

In a stream and in every replay, the clock of an operator shows the time of the source commit whose elements it
processes. So ingestion time equals processing time here, and the names below are other names of the same assigners
(docs/decisions/windows-and-time.md).
"""

from tidegate.windowing.assigners.session import DynamicProcessingTimeSessionWindows, ProcessingTimeSessionWindows
from tidegate.windowing.assigners.sliding import SlidingProcessingTimeWindows
from tidegate.windowing.assigners.tumbling import TumblingProcessingTimeWindows

TumblingIngestionTimeWindows = TumblingProcessingTimeWindows
SlidingIngestionTimeWindows = SlidingProcessingTimeWindows
IngestionTimeSessionWindows = ProcessingTimeSessionWindows
DynamicIngestionTimeSessionWindows = DynamicProcessingTimeSessionWindows
