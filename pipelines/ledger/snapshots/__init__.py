"""Snapshots: the manifest, and how one is found, restored and compared."""
