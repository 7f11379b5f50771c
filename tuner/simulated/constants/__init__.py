"""Numbers that simulated times are computed with, and their hash."""
