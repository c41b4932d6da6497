"""Snapshots: the manifest, and how snapshots are found, restored and compared."""
