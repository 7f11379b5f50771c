"""The layer with its low-rank branch merged into 16-bit weights by a first kernel of each launch."""
