"""Tests of Tidegate. This is a package so that tests can import its builders."""
