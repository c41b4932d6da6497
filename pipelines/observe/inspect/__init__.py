"""Information about a pipeline, whether or not it is running: status, overview, explanation."""
