"""The process that owns a card: loads, checks, times; imports neither compiler nor search."""
