"""Pages of a sweep."""
