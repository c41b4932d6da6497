"""Quality: expectation suites as code, and the reports that show them."""

import os

# Great Expectations reads this when it is imported, and everything here that imports it passes by.
os.environ["GX_ANALYTICS_ENABLED"] = "false"
