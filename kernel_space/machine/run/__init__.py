"""The chip and its schedules; the public entry is ``run.py``."""
