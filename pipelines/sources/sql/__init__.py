"""Spark SQL of a pipeline, evaluated as Arrow compute in the tasks.

`reading` parses an expression, `compile` gives it Spark's types and a program of Arrow kernels, and `expression`
applies the programs of an input to the rows of its files. An expression that is not proven to give Spark's values is
refused with a reason, and Spark evaluates it instead.
"""
