"""One tune from end to end, and what it leaves behind."""
