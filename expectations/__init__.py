"""Quality: expectation suites as code, and the pages that show their outcomes."""

import os

# Great Expectations reads this variable on import, and importing any module here runs this one first.
os.environ["GX_ANALYTICS_ENABLED"] = "false"
