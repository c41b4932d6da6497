"""Aggregates: the result columns of a window."""

from windowing.aggregates.bound import Aggregate, AggregateColumns
from windowing.aggregates.by_time import First, Last
from windowing.aggregates.count import Count
from windowing.aggregates.extremes import Max, Min
from windowing.aggregates.sums import Mean, Sum

__all__ = ["Aggregate", "AggregateColumns", "Count", "First", "Last", "Max", "Mean", "Min", "Sum"]
