"""How to look for the best kernel, and how to launch it."""
