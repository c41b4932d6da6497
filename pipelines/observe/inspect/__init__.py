"""Inspection of a pipeline, running or not: status, overview, explanation."""
