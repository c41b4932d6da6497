"""The Delta source: the log of a table, its deletion vectors, its columns in files, and its rows as read by Spark."""
