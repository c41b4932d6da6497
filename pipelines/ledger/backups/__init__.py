"""Backups of a pipeline's tables in another place, from which lost tables are made again as they were."""
