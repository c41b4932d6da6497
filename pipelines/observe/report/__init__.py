"""The run report: one self-contained HTML page that shows how an epoch went."""
