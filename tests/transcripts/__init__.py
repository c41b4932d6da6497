"""The transcript runner: conformance cases as data, run against the public classes.

The format is tests/conformance/FORMAT.md. The runner contains no semantics: it builds what a case describes, feeds its
steps, and compares the output with what is expected.
"""
