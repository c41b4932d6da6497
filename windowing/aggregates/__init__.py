"""Aggregates: the result columns of a window."""

from windowing.aggregates.bound import Aggregate, AggregateColumns
from windowing.aggregates.by_time import First, Last
from windowing.aggregates.count import Count, CountIf
from windowing.aggregates.extremes import Max, Min
from windowing.aggregates.sums import Mean, Sum
from windowing.aggregates.vectorised import Groups, VectorisedAggregate

__all__ = [
    "Aggregate",
    "AggregateColumns",
    "Count",
    "CountIf",
    "First",
    "Groups",
    "Last",
    "Max",
    "Mean",
    "Min",
    "Sum",
    "VectorisedAggregate",
]
