"""Corrections: windows are computed again because late rows are reopened or rows of the source changed."""
