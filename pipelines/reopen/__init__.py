"""Correction of windows: compute them again from the source, and publish what differs.

Two things ask for it. Late rows are reopened: their windows get the result that they would have had if they had
accepted the rows, so after all late rows of a stream are reopened, it has the windows of a backfill in event order.
This is the law of late data. And rows of the source changed: their windows get the result of the newer version.
"""
