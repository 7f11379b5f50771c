"""The kernel of ``pair``."""
