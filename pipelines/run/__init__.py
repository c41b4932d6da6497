"""Runs of a pipeline: backfill, replay and stream, the driver under its lease, and what is done around epochs."""
