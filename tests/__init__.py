"""Tests of Tidegate; a package, so that the builders in it can be imported."""
