"""Sources: the Delta log, which says what was committed when, and the slices that an epoch reads."""
