"""The tables of a pipeline. Each table has a module with its columns, their descriptions and its queries."""
