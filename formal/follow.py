"""Checks traces of the real code against the model: is each an order of steps that the protocol allows?

A trace is what `TIDEGATE_STEPS` writes, in the order of the steps.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from formal.scopes import INVARIANTS
from formal.tlc import run

Trace = Sequence[str]
"""Lines of JSON with driver, step, epoch, and table or kind of epoch."""

UNSEEN = ("rejects", "windows")
"""Tables that the model leaves out."""

COMMANDS = {"stream --available-now": "stream", "test": "stream", "late reopen": "reopen"}
"""Commands in a lease that have another name in the model."""


def follow(traces: Sequence[Trace], commits: Sequence[int]) -> list[str]:
    """Return what is wrong with each trace: "" if the model can take all of its steps and keeps its promises.

    Args:
        traces: the traces.
        commits: numbers of files of the source's commits; 0 for one that deletes or changes rows.

    Raises:
        RuntimeError: TLC did not complete.
    """
    known = [_lines(trace) for trace in traces]
    drivers = max(len({line["driver"] for line in lines}) for lines in known)
    numbers = [int(line["epoch"]) for lines in known for line in lines]
    # No row is late, and each has its own time: the model knows which rows an epoch reads, but not their content.
    times = ", ".join(
        "<<" + (", ".join(str(number + 1) for _ in range(files)) or "0") + ">>" for number, files in enumerate(commits)
    )
    text = f"""\
---- MODULE Traced ----
EXTENDS Follows
TheTimes == << << {times} >> >>
TheTraces == << {", ".join("<< " + ", ".join(map(_record, lines)) + " >>" for lines in known)} >>
====
"""
    configuration = f"""\
SPECIFICATION FollowSpec
CONSTANTS
  Times <- TheTimes
  Traces <- TheTraces
  Drivers = {{{", ".join(f'"d{number}"' for number in range(drivers + 1))}}}
  Commands = {{"stream", "restore", "forget", "vacuum", "reopen"}}
  Others = {{}}
  MaxStarts = {drivers + 2}
  Calm = 0
  MaxEpochs = {max(numbers) + 1}
  Stale = FALSE
  Bug = "none"
VIEW FollowView
ACTION_CONSTRAINT Tell
INVARIANTS {" ".join(INVARIANTS)}
"""
    told = run("Traced", configuration, text=text)
    if "Model checking completed. No error has been found" not in told:
        raise RuntimeError(f"TLC did not complete, or a promise is broken:\n{told}")
    followed = {int(which): int(line) for which, line in re.findall(r'<<"followed", (\d+), (\d+)>>', told)}
    taken = [followed.get(number, 0) for number in range(1, len(known) + 1)]
    return [
        "" if at == len(lines) else f"line {at + 1} is not a step of the protocol: {lines[at]}"
        for at, lines in zip(taken, known, strict=True)
    ]


def _lines(trace: Trace) -> list[dict[str, str | int]]:
    """Return the lines that the model covers, with short names of drivers."""
    lines = [json.loads(line) for line in trace]
    names = {run_id: f"d{number}" for number, run_id in enumerate(dict.fromkeys(line["driver"] for line in lines))}
    return [{**line, "driver": names[line["driver"]]} for line in lines if line["of"] not in UNSEEN]


def _record(line: dict[str, str | int]) -> str:
    step, command = str(line["step"]), ""
    if step.startswith("started "):
        step, command = step.split(" ", 1)
    step = "ended" if step == "lost" else step
    return (
        f'[driver |-> "{line["driver"]}", step |-> "{step}", command |-> "{COMMANDS.get(command, command)}", '
        f'epoch |-> {line["epoch"]}, of |-> "{line["of"]}"]'
    )
