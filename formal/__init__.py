"""The protocol as a model in TLA+, which TLC exhausts: `python -m formal`."""
