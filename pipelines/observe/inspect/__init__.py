"""What a pipeline is and does, whether or not it is running: status, overview, explanation."""
