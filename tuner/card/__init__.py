"""A real card: the tuner's side. What its process does is in ``worker``."""
