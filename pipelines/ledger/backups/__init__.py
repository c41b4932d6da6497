"""Backups of a pipeline's tables in another location, from which lost tables can be restored."""
