"""Operators that are chains of others: one object launches them all, one candidate is a config of each."""
