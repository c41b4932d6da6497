"""The run report: one HTML page that shows how an epoch went, with everything it needs in it."""
