"""Example DAGs: copy them with their tidegate.toml into a folder of DAGs."""
