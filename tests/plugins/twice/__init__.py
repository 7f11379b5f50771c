"""A chain of an operator with itself."""
