"""The files of a new project, which `tidegate init` copies, and the rows of its sample table.

`@START@` in tidegate.toml is the first day of the sample.
"""

DAYS = 7
"""Number of days of the sample; the last one is the day before the project was created."""
