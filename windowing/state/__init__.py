"""Keyed state: what user code declares, and the rows in which a snapshot keeps everything."""

from tidegate.windowing.state.descriptors import (
    AggregatingStateDescriptor,
    ListState,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    MergingState,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueState,
    ValueStateDescriptor,
)
from tidegate.windowing.state.ttl import StateTtlConfig, UpdateType

__all__ = [
    "AggregatingStateDescriptor",
    "ListState",
    "ListStateDescriptor",
    "MapState",
    "MapStateDescriptor",
    "MergingState",
    "ReducingStateDescriptor",
    "StateDescriptor",
    "StateTtlConfig",
    "UpdateType",
    "ValueState",
    "ValueStateDescriptor",
]
