"""`python -m tests.oracle flink` runs random scenarios with Flink's operators and with ours, and compares each record.

`python -m tests.oracle beam` does so with Beam's trigger driver, and without a name both run. It prints a line for each
kind of scenario, and each difference that no rule explains, in which case it ends with 1. A number says how many
scenarios to draw.
"""

from __future__ import annotations

import argparse
import sys

from tests.oracle import compare

ORACLES = {"flink": compare.with_flink, "beam": compare.with_beam}


def main() -> int:
    """Run the oracles."""
    parser = argparse.ArgumentParser(prog="python -m tests.oracle", description=__doc__)
    parser.add_argument("oracle", nargs="?", choices=("both", *ORACLES), default="both")
    parser.add_argument("scenarios", nargs="?", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0, help="seed of the first scenario of each kind")
    options = parser.parse_args()
    unexplained = 0
    for name, oracle in ORACLES.items():
        if options.oracle in ("both", name):
            for line, faults in oracle(options.first, options.scenarios):
                print(line, *faults, sep="\n", flush=True)
                unexplained += len(faults)
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())
