"""Aggregates: the result columns of a window."""

from windowing.aggregates.bound import Aggregate, AggregateColumns
from windowing.aggregates.by_time import First, Last
from windowing.aggregates.by_value import MaxBy, MinBy
from windowing.aggregates.collect import CollectList, CollectSet
from windowing.aggregates.count import Count, CountIf
from windowing.aggregates.extremes import Max, Min
from windowing.aggregates.sketches import ApproxCountDistinct, ApproxQuantile
from windowing.aggregates.spread import StandardDeviation, Variance
from windowing.aggregates.sums import Mean, Sum
from windowing.aggregates.truth import AllTrue, AnyTrue
from windowing.aggregates.vectorised import Groups, VectorisedAggregate

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
    "Variance",
    "VectorisedAggregate",
]
