"""What a pipeline shows: views of its tables, explanations, status, the run report, metrics and lineage."""
