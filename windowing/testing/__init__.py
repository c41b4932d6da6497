"""For tests of pipelines and operators: a harness without Spark, and the transcript runner."""

from __future__ import annotations

import pyarrow as pa

from windowing.compute import Windows
from windowing.keys import DEFAULT_MAX_PARALLELISM, KeySchema
from windowing.operators.window import WindowOperator
from windowing.operators.window.snapshot import state_schema
from windowing.panes import PanePolicy
from windowing.testing.harness import OperatorHarness, Snapshot

__all__ = ["OperatorHarness", "Snapshot", "window_harness"]


def window_harness(
    windows: Windows,
    *,
    key: KeySchema | None = None,
    value_type: pa.DataType | None = None,
    panes: PanePolicy | None = None,
    late_output: bool = True,
    account_for_all: bool = False,
    max_parallelism: int = DEFAULT_MAX_PARALLELISM,
) -> OperatorHarness:
    """A harness around the window operator.

    Args:
        windows: what to compute.
        key: the key columns; None infers them from the first key.
        value_type: Arrow type of the elements, where contents keep them; None infers it.
        panes: see `WindowOperator`.
        late_output: see `WindowOperator`.
        account_for_all: see `WindowOperator`.
        max_parallelism: number of key groups.
    """
    policy = panes or PanePolicy(accumulation=windows.accumulation)
    return OperatorHarness(
        lambda key_groups, key_group_of: WindowOperator(
            windows,
            panes=policy,
            late_output=late_output,
            account_for_all=account_for_all,
            key_groups=key_groups,
            key_group_of=key_group_of,
        ),
        lambda schema: state_schema(windows, schema, value_type, policy),
        key,
        max_parallelism,
    )
