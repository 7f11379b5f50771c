"""Of every row: its elements doubled, and how many of them are positive."""
