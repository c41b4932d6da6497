"""Questions about a pipeline, each with its answer: why, trace, verify, advise, compare and explain."""
