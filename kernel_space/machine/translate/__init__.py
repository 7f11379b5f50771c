"""Basic blocks to Python functions, and the names that their text uses."""
