"""Runs of a pipeline: backfill, replay and stream; the lease of a run; maintenance between epochs."""
