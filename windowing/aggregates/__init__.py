"""Aggregates: the result columns of windows."""

from tidegate.windowing.aggregates.bound import Aggregate, AggregateColumns
from tidegate.windowing.aggregates.chosen import First, Last, MaxBy, MinBy
from tidegate.windowing.aggregates.collect import CollectList, CollectSet
from tidegate.windowing.aggregates.count import Count, CountIf
from tidegate.windowing.aggregates.extremes import AllTrue, AnyTrue, Max, Min
from tidegate.windowing.aggregates.sketches import ApproxCountDistinct, ApproxQuantile
from tidegate.windowing.aggregates.spread import StandardDeviation, Variance
from tidegate.windowing.aggregates.sums import Mean, Sum
from tidegate.windowing.aggregates.top import TopN
from tidegate.windowing.aggregates.vectorised import Groups, VectorisedAggregate

__all__ = [
    "Aggregate",
    "AggregateColumns",
    "AllTrue",
    "AnyTrue",
    "ApproxCountDistinct",
    "ApproxQuantile",
    "CollectList",
    "CollectSet",
    "Count",
    "CountIf",
    "First",
    "Groups",
    "Last",
    "Max",
    "MaxBy",
    "Mean",
    "Min",
    "MinBy",
    "StandardDeviation",
    "Sum",
    "TopN",
    "Variance",
    "VectorisedAggregate",
]
