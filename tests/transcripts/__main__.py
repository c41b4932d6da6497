"""Run conformance cases: `python -m tests.transcripts FILE...`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tests.transcripts.case import Options
from tests.transcripts.runner import Outcome, run_case


def main(arguments: list[str] | None = None) -> int:
    """Run the cases of files, and return 1 if any failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.transcripts", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="case files (tests/conformance/*.json)")
    parser.add_argument("--operator", choices=("row", "columnar"), default="row", help="which operator to drive")
    parser.add_argument(
        "--restore-every-step", action="store_true", help="snapshot and restore the operator after every step"
    )
    parser.add_argument("--rescale", type=int, metavar="P", help="restore with this parallelism after every step")
    parser.add_argument("--only", metavar="ID", help="run just the case with this id")
    options = parser.parse_args(arguments)
    how = Options(options.operator, options.restore_every_step or options.rescale is not None, options.rescale)
    outcomes = [
        run_case(case, how)
        for file in options.files
        for case in json.loads(file.read_text())["cases"]
        if options.only in (None, case["id"])
    ]
    if not outcomes:
        print(f"no case with id {options.only!r} in {', '.join(map(str, options.files))}")
        return 1
    for outcome in outcomes:
        if outcome.text:
            print(f"{outcome.state.upper()} {outcome.id}: {outcome.text}")
    counts = {state: sum(o.state == state for o in outcomes) for state in Outcome.STATES}
    print(", ".join(f"{count} {state}" for state, count in counts.items()))
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
