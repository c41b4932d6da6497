"""Quality: expectation suites as code, and the reports that show them."""
