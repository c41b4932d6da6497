"""`python -m formal` proves the model in the small bounds; `python -m formal wide` in those of the long form.

It prints a line for each run, and ends with 1 if an invariant fails, a bug is not refuted or a dangerous state is not
reached. Names of scopes or protections after that choose among the runs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from formal.scopes import BUGS, SCOPES, wide
from formal.tlc import check


def runs(is_wide: bool, names: list[str]) -> Iterator[tuple[str, bool]]:
    """Run what is chosen, and yield a line for each run, and True if all is as it should be."""
    scopes = {scope.name: wide(scope) if is_wide else scope for scope in SCOPES}
    for scope in scopes.values():
        if names and scope.name not in names:
            continue
        found = check(scope, heap="4g" if is_wide else "1g")
        missed = sorted(set(scope.reaches) - found.reached)
        faults = [f"BROKEN: {found.broken}"] if found.broken else [f"not reached: {state}" for state in missed]
        line = f"{scope.name}: {found.states} states, {len(found.reached)} dangerous ones, {found.seconds:.0f} s"
        yield "; ".join([line, *faults]), not faults
        if found.broken:
            print(found.text, file=sys.stderr)
    small = {scope.name: scope for scope in SCOPES}
    for bug in BUGS:
        if names and bug.protection not in names and "bugs" not in names:
            continue
        found = check(small[bug.scope], bug.protection, (bug.refutes,))
        is_refuted = found.broken == bug.refutes
        yield f"without {bug.protection!r}: {bug.refutes} {_fails(is_refuted)}, {found.seconds:.0f} s", is_refuted


def _fails(is_refuted: bool) -> str:
    return "fails" if is_refuted else "HOLDS"


if __name__ == "__main__":
    is_good = True
    for line, is_right in runs("wide" in sys.argv[1:], [name for name in sys.argv[1:] if name != "wide"]):
        print(line, flush=True)
        is_good = is_good and is_right
    sys.exit(0 if is_good else 1)
