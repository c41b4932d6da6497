"""The example: every flight that left New York in 2013, laid out as a project of yours would be.

Two pipelines (`duty`, `hours`) over one source table (`source`), written with the public names only.
"""
