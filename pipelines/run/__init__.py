"""Runs of a pipeline: backfill, replay and stream; the driver with its lease; maintenance between epochs."""
