"""Keyed state: the descriptors that user code declares, and the rows of a snapshot."""

from tidegate.windowing.state.descriptors import (
    AggregatingStateDescriptor,
    ListState,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    MergingState,
    ReducingStateDescriptor,
    StateDescriptor,
    StateTtlConfig,
    UpdateType,
    ValueState,
    ValueStateDescriptor,
)

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
