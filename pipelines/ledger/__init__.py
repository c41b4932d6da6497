"""The durable record of a pipeline: manifests, tables, the lease, snapshots, savepoints and retention."""
