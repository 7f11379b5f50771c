"""Raises where it is imported, which no compiler error is."""

raise RuntimeError("this module has a bug")
