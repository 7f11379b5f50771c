"""Points of a search space: choices, exact counts, neighbours, published configurations."""
