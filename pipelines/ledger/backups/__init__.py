"""Backups of a pipeline's tables in another place, from which lost tables can be restored."""
