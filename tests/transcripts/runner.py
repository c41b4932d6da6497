"""Runs one case: its kind decides who reads it, and anything unexpected is a failure."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from tests.transcripts.assigners import run_assign, run_intersects, run_stagger, run_window_start
from tests.transcripts.case import Mismatch, Options, Skipped
from tests.transcripts.evictors import run_evictor
from tests.transcripts.keygroups import run_key_groups, run_spark_key_groups
from tests.transcripts.merging import run_merge_windows, run_merging_window_set
from tests.transcripts.process import run_interval_join, run_keyed_co_process, run_keyed_process
from tests.transcripts.timers import run_priority_queue, run_timer_service
from tests.transcripts.timestamps import run_timestamps_and_watermarks
from tests.transcripts.triggers import run_trigger
from tests.transcripts.watermarks import (
    run_generator,
    run_idleness_timer,
    run_multiplexer,
    run_valve,
    run_watermark_output,
)
from tests.transcripts.windows import run_window_operator
from tidegate.windowing.errors import UnboundedStateWarning

KINDS: dict[str, Callable[[dict[str, Any], Options], None]] = {
    "assign": run_assign,
    "evictor": run_evictor,
    "generator": run_generator,
    "idleness_timer": run_idleness_timer,
    "intersects": run_intersects,
    "interval_join": run_interval_join,
    "key_groups": run_key_groups,
    "keyed_co_process": run_keyed_co_process,
    "keyed_process": run_keyed_process,
    "merge_windows": run_merge_windows,
    "merging_window_set": run_merging_window_set,
    "multiplexer": run_multiplexer,
    "priority_queue": run_priority_queue,
    "spark_key_groups": run_spark_key_groups,
    "stagger": run_stagger,
    "timer_service": run_timer_service,
    "timestamps_and_watermarks": run_timestamps_and_watermarks,
    "trigger": run_trigger,
    "valve": run_valve,
    "watermark_output": run_watermark_output,
    "window_operator": run_window_operator,
    "window_start": run_window_start,
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a case; `text` says why it failed or was skipped."""

    STATES: ClassVar[tuple[str, ...]] = ("passed", "failed", "skipped")

    id: str
    state: str
    text: str = ""


def run_case(case: dict[str, Any], options: Options) -> Outcome:
    """Run a case. An unknown kind or field is a failure, never a skip."""
    name = str(case.get("id", "case without id"))
    run = KINDS.get(case.get("kind", ""))
    if run is None:
        return Outcome(name, "failed", f"unknown kind {case.get('kind')!r}; the runner knows {sorted(KINDS)}")
    try:
        with warnings.catch_warnings():
            # Some cases are about windows that nothing cleans up.
            warnings.simplefilter("ignore", UnboundedStateWarning)
            run(case, options)
    except Skipped as reason:
        return Outcome(name, "skipped", str(reason))
    except Mismatch as mismatch:
        return Outcome(name, "failed", str(mismatch))
    except Exception as error:  # a case that crashes the operator is a failed case, with its reason
        return Outcome(name, "failed", f"{type(error).__name__}: {error}")
    return Outcome(name, "passed")
