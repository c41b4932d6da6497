"""Sources: the Delta log that says what was committed when, and the slices that an epoch reads."""
