"""Quality: expectation suites as code, and the pages that show their outcomes."""

import os

# Great Expectations reads this variable when it is imported, and every module here runs this one first.
os.environ["GX_ANALYTICS_ENABLED"] = "false"
