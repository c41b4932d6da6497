"""`python -m benchmarks.nexmark`."""

import sys

from benchmarks.nexmark.program import main

sys.exit(main())
