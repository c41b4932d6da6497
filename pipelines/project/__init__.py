"""The facade of a project: every use case as a call that returns a value. The command line is a shell over it.

`project.py` has a method for each use case, with its arguments and errors; the other files have the functions behind
the methods, with their answers.
"""
