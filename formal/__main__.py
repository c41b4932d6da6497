"""`python -m formal` checks the model in small bounds; `python -m formal wide` in those of the long form.

It prints a line for each run, and ends with 1 if a promise fails, a bug is not refuted or a dangerous state is not
reached. Further arguments are names of scopes or protections, and select their runs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from formal.scopes import BUGS, IN_TIME, LIVE, SCOPES, Bug, Scope, wide
from formal.tlc import check

AT_ONCE = 2
"""Number of TLC processes; each has one worker, because most runs take two seconds."""

Line = tuple[str, bool]
"""What a run found, and True if that is as expected."""


def runs(is_wide: bool, names: list[str]) -> Iterator[Line]:
    """Execute the selected runs, and yield a line for each."""
    small = {scope.name: scope for scope in SCOPES}
    proved = [wide(scope) if is_wide else scope for scope in SCOPES if is_wide or names or scope.is_quick]
    in_time = [small[name] for name in (LIVE if is_wide else LIVE[:1])]
    todo = [
        *(partial(_proved, scope) for scope in proved if not names or scope.name in names),
        *(partial(_proved_in_time, scope) for scope in in_time if not names or scope.name in names),
        *(partial(_refuted, small[bug.scope], bug) for bug in BUGS if not names or bug.protection in names),
    ]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield from pool.map(lambda run: run(), todo)


def _proved(scope: Scope) -> Line:
    found = check(scope, heap="3g")
    missed = sorted(set(scope.reaches) - found.reached)
    faults = [f"BROKEN: {found.broken}\n{found.text}"] if found.broken else [f"NOT REACHED: {at}" for at in missed]
    line = f"{scope.name}: {found.states} states, {len(found.reached)} dangerous ones, {found.seconds:.0f} s"
    return "; ".join([line, *faults]), not faults


def _proved_in_time(scope: Scope) -> Line:
    found = check(scope, promises=IN_TIME)
    line = f"{scope.name}, {IN_TIME[0]}: {found.states} states, {found.seconds:.0f} s"
    return f"{line}; BROKEN\n{found.text}" if found.broken else line, not found.broken


def _refuted(scope: Scope, bug: Bug) -> Line:
    found = check(scope, bug.protection, (bug.refutes,))
    is_refuted = found.broken == bug.refutes
    line = f"without {bug.protection!r}: {bug.refutes} {'fails' if is_refuted else 'HOLDS'}"
    return f"{line}, {found.states} states, {found.seconds:.0f} s", is_refuted


if __name__ == "__main__":
    is_good = True
    for line, is_right in runs(
        "wide" in sys.argv[1:], [name for name in sys.argv[1:] if name not in ("small", "wide")]
    ):
        print(line, flush=True)
        is_good = is_good and is_right
    sys.exit(0 if is_good else 1)
