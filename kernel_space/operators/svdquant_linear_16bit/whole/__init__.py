"""The layer in one launch for few rows: CTAs of the low-rank branch beside those of the weights."""
