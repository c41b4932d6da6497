"""Aggregates: the result columns of windows."""

from typing import TYPE_CHECKING

from tidegate.exports import exports

if TYPE_CHECKING:
    from tidegate.windowing.aggregates.bound import Aggregate as Aggregate, AggregateColumns as AggregateColumns
    from tidegate.windowing.aggregates.chosen import First as First, Last as Last, MaxBy as MaxBy, MinBy as MinBy
    from tidegate.windowing.aggregates.collect import CollectList as CollectList, CollectSet as CollectSet
    from tidegate.windowing.aggregates.count import Count as Count, CountIf as CountIf
    from tidegate.windowing.aggregates.extremes import AllTrue as AllTrue, AnyTrue as AnyTrue, Max as Max, Min as Min
    from tidegate.windowing.aggregates.sketches import (
        ApproxCountDistinct as ApproxCountDistinct,
        ApproxQuantile as ApproxQuantile,
    )
    from tidegate.windowing.aggregates.spread import StandardDeviation as StandardDeviation, Variance as Variance
    from tidegate.windowing.aggregates.sums import Mean as Mean, Sum as Sum
    from tidegate.windowing.aggregates.top import TopN as TopN
    from tidegate.windowing.aggregates.vectorised import Groups as Groups, VectorisedAggregate as VectorisedAggregate
else:
    __all__, __getattr__, __dir__ = exports(
        __name__,
        {
            ".bound": "Aggregate AggregateColumns",
            ".chosen": "First Last MaxBy MinBy",
            ".collect": "CollectList CollectSet",
            ".count": "Count CountIf",
            ".extremes": "AllTrue AnyTrue Max Min",
            ".sketches": "ApproxCountDistinct ApproxQuantile",
            ".spread": "StandardDeviation Variance",
            ".sums": "Mean Sum",
            ".top": "TopN",
            ".vectorised": "Groups VectorisedAggregate",
        },
    )
