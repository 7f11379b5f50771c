"""Candidates on a real card: a worker process per card that loads, checks and times, and its side in the tuner."""
