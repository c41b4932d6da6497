"""Operators: windows and process functions over keyed elements."""
