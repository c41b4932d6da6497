"""Rules for the tables of every pipeline, written as expectations like those of Great Expectations."""
