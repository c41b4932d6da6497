"""The source Delta: the log of a table, its deletion vectors, its columns in files, and its rows by Spark."""
