"""The dispatch table, its merge rule, and the objects beside it."""
