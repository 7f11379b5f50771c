"""Which kernel is launched for a problem, and what is remembered of it."""
