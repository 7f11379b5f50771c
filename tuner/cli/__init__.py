"""The command line: which commands there are, and how they end."""
