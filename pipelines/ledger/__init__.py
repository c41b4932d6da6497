"""What a pipeline has written down: its manifests, its tables, the lease, snapshots, savepoints and retention."""
