"""Answers about a pipeline that is or is not at work: status, overview, explanation."""
