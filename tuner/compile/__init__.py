"""Killable compile workers, and folders of compiled candidates that travel."""
