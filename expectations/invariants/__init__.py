"""Rules for the tables of every pipeline, each an expectation in the style of Great Expectations' own."""
