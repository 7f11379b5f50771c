"""How to look for the best kernel, and how to launch it."""

__version__ = "0.1.0"
