"""Everything that shows a pipeline: views of its tables, explanations, status, run reports, metrics and lineage."""
