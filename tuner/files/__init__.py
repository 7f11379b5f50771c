"""Files that stay whole, and what is checked of those that others wrote."""
