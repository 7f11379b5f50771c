"""A folder per operator, in it a folder per kernel."""
