"""One of two drivers that start together: they meet at files, so that neither is ever ahead by chance.

Usage: contender.py FOLDER NAME OTHER HOW CLOCK. HOW is `leased`, or the step after which the two, without a lease, meet
once more. Ends with the exit code of its error, otherwise 0; the error is printed.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tests.lake import LOCAL, Clock, Lake
from tests.recovery.arrivals import run
from tidegate.pipelines.errors import TidegateError
from tidegate.pipelines.ledger.lease import Lease

_PATIENCE = 60.0


def meet(folder: Path, place: str, name: str, other: str) -> None:
    """Wait until the other one has reached a place too."""
    (folder / f"{place}-{name}").touch()
    wait_for(folder / f"{place}-{other}")


def wait_for(file: Path) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not file.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nobody made {file.name}")
        time.sleep(0.002)


def main(folder: Path, name: str, other: str, how: str, clock: int) -> int:
    lake = Lake(folder, Clock(clock))
    told: list[str] = []

    def tell(step: str) -> None:
        told.append(step)
        if how == "leased" and told == ["planned"]:
            # The holder of the lease keeps running until the other one has seen that it is held.
            wait_for(folder / f"ended-{other}")
        if step == how and told.count(how) == 1:
            meet(folder, "step", name, other)

    if how != "leased":
        Lease._hold = lambda self: None  # type: ignore[method-assign]
        Lease.check = lambda self: None  # type: ignore[method-assign]
    meet(folder, "start", name, other)
    try:
        run(LOCAL, lake, tell)
    except TidegateError as error:
        print(error)
        return error.exit_code
    finally:
        (folder / f"ended-{name}").touch()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5])))
