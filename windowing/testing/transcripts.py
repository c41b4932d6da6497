"""Run the conformance cases of a checkout: `python -m tidegate.windowing.testing.transcripts FILE...`.

The runner itself is `tests.transcripts`; neither it nor this name is part of the wheel.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    runpy.run_module("tests.transcripts", run_name="__main__", alter_sys=True)
