"""Runs of a pipeline: backfill, replay and stream, the driver with its lease, and maintenance between epochs."""
