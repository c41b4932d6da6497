"""A pipeline as a value: its inputs and computation, their columns, and how they are checked and fingerprinted."""
