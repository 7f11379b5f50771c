"""The layer in one launch for few rows, each warp a whole tile of it on k-tiles of its own."""
