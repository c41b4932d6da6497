"""The pipeline as a value: its inputs and its computation, their columns, their checks and their fingerprint."""
