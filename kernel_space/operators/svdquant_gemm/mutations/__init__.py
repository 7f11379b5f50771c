"""Defects put into PTX on purpose, each with the report that it must cause."""
