"""Runs of a pipeline: backfill, replay and stream, the driver with its lease, and upkeep around epochs."""
