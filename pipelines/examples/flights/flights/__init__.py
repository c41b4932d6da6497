"""The example: every flight that left New York in 2013, laid out like a user's project.

Two pipelines (`duty`, `hours`) over one source table (`source`), written with the public names only.
"""
