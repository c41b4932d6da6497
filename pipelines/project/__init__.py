"""The facade of a project: every use case is a call that returns a value. The command line is a thin layer over it.

`project.py` has a method for each use case, with its arguments and errors; the other files have the functions behind
those methods and the values that they return.
"""
