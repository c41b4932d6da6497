"""The protocol as a model in TLA+, which TLC checks exhaustively: `python -m formal`."""
