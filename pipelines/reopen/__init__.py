"""Reopening of late rows: compute the windows that they belong to again from the source, and publish corrections.

A reopened window has the result that it would have had if it had accepted those rows. So after all late rows of a
stream are reopened, it has the windows of a backfill in event order. This is the law of late data.
"""
