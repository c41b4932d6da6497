"""Inspection of a pipeline, running or not: status, overview, histories, what windows wait for."""
