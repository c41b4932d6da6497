"""The epoch: the one unit of work. Plan, operate, commit, publish; a test can stop between any two."""
