"""Nexmark: persons, auctions and bids, and queries over them, whose answers are compared before a time is shown."""

from benchmarks.nexmark.program import main as main
