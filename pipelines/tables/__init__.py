"""The tables of a pipeline, one module each: schema, meaning of the columns, queries."""
