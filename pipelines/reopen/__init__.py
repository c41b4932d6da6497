"""Late data reopened: the windows that late rows belong to, computed again from the source and published anew.

A reopened window is what it would have been had it still taken those rows. So a stream whose late rows
are all reopened has the windows of a backfill in event order: the law of late data.
"""
