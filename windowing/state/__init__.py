"""Keyed state: the descriptors that user code declares, and the rows of a snapshot."""

from typing import TYPE_CHECKING

from tidegate.exports import exports

if TYPE_CHECKING:
    from tidegate.windowing.state.descriptors import (
        AggregatingStateDescriptor as AggregatingStateDescriptor,
        ListState as ListState,
        ListStateDescriptor as ListStateDescriptor,
        MapState as MapState,
        MapStateDescriptor as MapStateDescriptor,
        MergingState as MergingState,
        ReducingStateDescriptor as ReducingStateDescriptor,
        StateDescriptor as StateDescriptor,
        StateTtlConfig as StateTtlConfig,
        UpdateType as UpdateType,
        ValueState as ValueState,
        ValueStateDescriptor as ValueStateDescriptor,
    )
else:
    __all__, __getattr__, __dir__ = exports(
        __name__,
        {
            ".descriptors": (
                "AggregatingStateDescriptor ListState ListStateDescriptor MapState MapStateDescriptor "
                "MergingState ReducingStateDescriptor StateDescriptor StateTtlConfig UpdateType "
                "ValueState ValueStateDescriptor"
            ),
        },
    )
